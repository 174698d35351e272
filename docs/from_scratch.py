"""Weft from scratch: a communication compiler in 400 lines of code and prose.

A training step on many ranks does two things: it computes, and it waits for numbers that other ranks have. Weft
rearranges the step so that the waiting happens behind the computing, and proves that the result is safe. This file
rebuilds that idea from nothing, with the standard library alone. Read it from top to bottom, then run it with
`python docs/from_scratch.py`. Where the text says what a program does, an `assert` checks it: if the file runs to its
last line, it told you the truth.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from math import ceil
from random import Random

# ---- 1. The central type ------------------------------------------------------------------------------------------
# A step is a list of ops. An op has a name of its own, a target that says what it does, arguments, and the number of
# elements in its result. An argument is the name of an earlier op, or a plain number. The last field is what this file
# is about: the `group`, the ranks that talk to each other, set where a collective starts and empty everywhere else.
#
# The order of the ops is the order in which they are issued. No other schedule hides anywhere: to change when something
# happens is to change this order. And everything is frozen, so to change something is to make a new one.


@dataclass(frozen=True)
class Op:
    name: str
    target: str
    args: tuple[str | int, ...]
    size: int
    group: str = ""

    @property
    def refs(self) -> tuple[str, ...]:
        return tuple(arg for arg in self.args if isinstance(arg, str))


@dataclass(frozen=True)
class Program:
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]

    @property
    def lines(self) -> tuple[Op, ...]:
        """The ops, and then `return`, as if it were one more op that reads the outputs."""
        return (*self.ops, Op("return", "return", self.outputs, 0))

    def position(self, name: str) -> int:
        return [line.name for line in self.lines].index(name)

    def __getitem__(self, name: str) -> Op:
        return self.lines[self.position(name)]

    def wait_for(self, start: str) -> str:
        return next(op.name for op in self.ops if op.target == "wait" and op.refs == (start,))


# ---- 2. A text form -----------------------------------------------------------------------------------------------
# Programs are easier to trust when they can be read. An op is one line, `%name: [size] = target(arguments)`, which
# ends in `over group` where it starts a collective. What we print we can also parse, so that a program can live in a
# test, in a bug report or, as here, in a tutorial.

LINE = re.compile(r"%(\w+): \[(\d+)\] = ([\w.]+)\((.*)\)(?: over (\w+))?")
ARG = re.compile(r"%(\w+)|(\d+)")


def show_op(op: Op) -> str:
    args = ", ".join(f"%{arg}" if isinstance(arg, str) else str(arg) for arg in op.args)
    if op.target == "return":
        return f"return {args}"
    return f"%{op.name}: [{op.size}] = {op.target}({args})" + (f" over {op.group}" if op.group else "")


def show(program: Program) -> str:
    return "\n".join(map(show_op, program.lines))


def parse_op(line: str) -> Op:
    if (found := LINE.fullmatch(line)) is None:
        raise ValueError(f"this is not an op: {line}")
    name, size, target, args, group = found.groups("")
    return Op(name, target, tuple(ref or int(number) for ref, number in ARG.findall(args)), int(size), group)


def parse(text: str) -> Program:
    *body, last = text.splitlines()
    return Program(tuple(map(parse_op, body)), tuple(re.findall(r"%(\w+)", last)))


# Here is the smallest program that communicates. A collective is two ops: a start, which returns at once, and a wait,
# before which its result must not be read. Everything that Weft does, it does in the space between those two.

TINY = """\
%w: [2] = input()
%g: [4] = all_gather.start(%w) over dp
%f: [4] = wait(%g)
return %f"""

tiny = parse(TINY)
assert tiny["g"] == Op("g", "all_gather.start", ("w",), 4, "dp")
assert show(tiny) == TINY

# ---- 3. What a program computes -----------------------------------------------------------------------------------
# To know that a rearranged program computes the same, we must be able to run it. Real ranks are processes on many
# machines; ours are the entries of a list, two of them, and every group holds both. They run one program on different
# numbers, so we can finish each op on all ranks before we turn to the next. What a target does is looked up in a table,
# never guessed from its spelling. A matrix is flat, row after row; `cat` and `piece` are for chapter 8.

RANKS = 2
Vector = list[float]
Ranks = list[Vector]  # one vector for each rank


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def sub_(a: Vector, b: Vector) -> Vector:
    a[:] = [x - y for x, y in zip(a, b, strict=True)]  # in place: whoever holds `a` sees it change
    return a


KERNELS: dict[str, Callable[..., Vector]] = {
    "mm": lambda a, m: [dot(a, m[j :: len(m) // len(a)]) for j in range(len(m) // len(a))],  # a times m
    "mmt": lambda a, m: [dot(a, m[i : i + len(a)]) for i in range(0, len(m), len(a))],  # a times m transposed
    "outer": lambda a, b: [x * y for x in a for y in b],
    "sub_": sub_,
    "cat": lambda a, b: a + b,
    "piece": lambda a, low, high, run: [x for i in range(0, len(a), run) for x in a[i + low : i + high]],
}
MATMULS = {"mm", "mmt", "outer"}
IN_PLACE = {"sub_"}  # these write to their first argument, and return it


def reduce_scatter(parts: Ranks) -> Ranks:
    total = [sum(column) for column in zip(*parts, strict=True)]
    share = len(total) // RANKS
    return [total[rank * share : (rank + 1) * share] for rank in range(RANKS)]


COLLECTIVES: dict[str, Callable[[Ranks], Ranks]] = {
    "all_gather.start": lambda shards: [list(chain(*shards)) for _ in range(RANKS)],
    "reduce_scatter.start": reduce_scatter,
}

# What a start returns is poison: there is nothing in it that anybody could read, until a wait gives it a value.
# Between the two, a real network may look at its input at any moment. Ours picks the most hostile one, the last: if
# somebody overwrites that input too early, the damage shows.


class Values(dict[str, Ranks]):
    def __missing__(self, name: str) -> Ranks:
        raise ValueError(f"%{name} is read, but it has no value before it is waited for")


def run(program: Program, inputs: dict[str, Ranks]) -> list[Ranks]:
    values = Values()
    flying: dict[str, Ranks] = {}  # for each start, what it reads
    for op in program.ops:
        if op.target == "input":
            values[op.name] = [list(vector) for vector in inputs[op.name]]
        elif op.group:
            flying[op.name] = values[op.refs[0]]
        elif op.target == "wait":
            values[op.name] = COLLECTIVES[program[op.refs[0]].target](flying[op.refs[0]])
        else:
            args = [[arg] * RANKS if isinstance(arg, int) else values[arg] for arg in op.args]
            values[op.name] = [KERNELS[op.target](*of_rank) for of_rank in zip(*args, strict=True)]
    return [values[name] for name in program.outputs]


def complaint(action: Callable[..., object], *args: object) -> str:
    try:
        action(*args)
    except ValueError as error:
        return str(error)
    raise AssertionError("this should have been refused")


shards = {"w": [[1.0, 2.0], [3.0, 4.0]]}
assert run(tiny, shards) == [[[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]]
HASTY = TINY.replace("%f: [4] = wait(%g)\nreturn %f", "return %g")
assert complaint(run, parse(HASTY), shards) == "%g is read, but it has no value before it is waited for"

# Now a program worth improving: a whole training step of a network with two layers. Each rank has its own data %x and
# keeps one half of each weight. It gathers a weight before it uses it, computes the gradients of the loss |y|²/2, sums
# them over the ranks, and takes its half of the sum off its half of the weight. And after each start, it waits.

STEP = """\
%x: [4] = input()
%w1: [8] = input()
%w2: [8] = input()
%g1: [16] = all_gather.start(%w1) over dp
%f1: [16] = wait(%g1)
%h: [4] = mm(%x, %f1)
%g2: [16] = all_gather.start(%w2) over dp
%f2: [16] = wait(%g2)
%y: [4] = mm(%h, %f2)
%d2: [16] = outer(%h, %y)
%r2: [8] = reduce_scatter.start(%d2) over dp
%s2: [8] = wait(%r2)
%dh: [4] = mmt(%y, %f2)
%d1: [16] = outer(%x, %dh)
%r1: [8] = reduce_scatter.start(%d1) over dp
%s1: [8] = wait(%r1)
%u2: [8] = sub_(%w2, %s2)
%u1: [8] = sub_(%w1, %s1)
return %y, %u1, %u2"""

step = parse(STEP)
draw = Random(0).random
data = {op.name: [[draw() / 2 for _ in range(op.size)] for _ in range(RANKS)] for op in step.ops[:3]}
y, u1, u2 = run(step, data)
next_y, _, _ = run(step, data | {"w1": u1, "w2": u2})
assert sum(dot(v, v) for v in next_y) < sum(dot(v, v) for v in y)  # it learns

# ---- 4. What must come before what --------------------------------------------------------------------------------
# An op may move, but never above what it depends on. Most dependencies are plain to see: they are its arguments. The
# others come from ops in place: whoever uses the memory that is written must stay on its own side of the write. Two
# details matter. A value made in place lives in the memory of the value that it overwrote. And a collective may read
# its input until it is waited for, so we say that a wait uses all that its start uses.


def dependencies(program: Program) -> dict[str, set[str]]:
    """For each line, the names of those that must stay above it."""
    owner: dict[str, str] = {}  # for each value, the op in whose memory it lives
    used, written, needs = dict[str, set[str]](), dict[str, set[str]](), dict[str, set[str]]()
    for op in program.lines:
        owner[op.name] = owner[op.refs[0]] if op.target in IN_PLACE else op.name
        of_start = program[op.refs[0]].refs if op.target == "wait" else ()
        used[op.name] = {owner[ref] for ref in (*op.refs, *of_start)}
        written[op.name] = {owner[op.name]} if op.target in IN_PLACE else set()
        clashes = {above for above in needs if written[above] & used[op.name] or used[above] & written[op.name]}
        needs[op.name] = set(op.refs) | clashes
    return needs


assert dependencies(step)["y"] == {"h", "f2"}  # its arguments, no more
assert dependencies(step)["u2"] == {"w2", "s2", "g2", "f2"}  # also the collective that reads the old %w2

# ---- 5. A verifier ------------------------------------------------------------------------------------------------
# A compiler that is wrong now and then is worse than none, so we check all that we make. A rule is a function that
# yields each line where it is broken, and why. Beside it in the table stands the smallest program that breaks it, and
# no rule further up may object to that program.

Rule = Callable[[Program], Iterator[tuple[str, str]]]


def defined(program: Program) -> Iterator[tuple[str, str]]:
    for at, op in enumerate(program.lines):
        above = {line.name for line in program.lines[:at]}
        yield from ((op.name, f"%{ref} is not defined above") for ref in op.refs if ref not in above)


def waited_for(program: Program) -> Iterator[tuple[str, str]]:
    for op in program.ops:
        readers = [line.target for line in program.lines if op.name in line.refs]
        fine = readers == ["wait"] if op.group else "wait" not in readers
        if not fine:
            yield op.name, f"a start is read by one wait, other ops by none; %{op.name} by {readers}"


def undisturbed(program: Program) -> Iterator[tuple[str, str]]:
    needs = dependencies(program)
    for start in (op.name for op in program.ops if op.group):
        # Only a write to its input can be bound to come both after a start and before its wait.
        between = sorted(name for name in needs[program.wait_for(start)] if start in needs[name])
        yield from ((name, f"%{name} overwrites what %{start}, in flight, still reads") for name in between)


RULES: dict[Rule, str] = {
    defined: "return %x",
    waited_for: HASTY,
    undisturbed: TINY.replace("%f:", "%u: [2] = sub_(%w, %w)\n%f:"),
}
for rule, broken in RULES.items():
    assert rule == next(each for each in RULES if any(each(parse(broken))))

# These look at one program. The last rule compares two: whatever an op depended on must still come before it. And when
# a rule is broken, the error shows the lines around the culprit, for that is where its reader will look first.


def faithful(before: Program, after: Program) -> Iterator[tuple[str, str]]:
    order = {op.name: at for at, op in enumerate(after.lines)}
    for name, needed in dependencies(before).items():
        late = [other for other in sorted(needed) if order.get(other, -1) > order.get(name, len(order))]
        yield from ((name, f"%{name} depends on %{other}, which now comes later") for other in late)


def verify(before: Program, after: Program) -> None:
    rules: tuple[Rule, ...] = (*RULES, partial(faithful, before))
    for name, why in chain.from_iterable(rule(after) for rule in rules):
        at = after.position(name)
        marked = [("--> " if op.name == name else "    ") + show_op(op) for op in after.lines]
        raise ValueError("\n".join([why, *marked[max(0, at - 1) : at + 2]]))


torn = parse(RULES[undisturbed])
assert run(torn, shards) == [[[0.0] * 4, [0.0] * 4]]  # the hostile network gathers what the write has left
CULPRIT = """\
%u overwrites what %g, in flight, still reads
    %g: [4] = all_gather.start(%w) over dp
--> %u: [2] = sub_(%w, %w)
    %f: [4] = wait(%g)"""
assert complaint(verify, tiny, torn) == CULPRIT
print("== What the verifier says of a write that comes too early", CULPRIT, sep="\n")

calm = parse("%w: [2] = input()\n%v: [4] = outer(%w, %w)\n%u: [2] = sub_(%w, %w)\nreturn %v")
swapped = Program((calm["w"], calm["u"], calm["v"]), calm.outputs)  # a fine program, but no longer the same one
assert complaint(verify, calm, swapped).startswith("%u depends on %v, which now comes later\n")

# ---- 6. A pass ----------------------------------------------------------------------------------------------------
# A pass has two halves. `plan` looks at the program and decides. What it decided is plain data, with a remark for each
# decision: a plan can be printed, compared, saved, and given to every rank, so that all ranks start their collectives
# in the same order. `apply` carries out one choice after another, and decides nothing. Then comes the verifier.


@dataclass(frozen=True)
class Plan:
    choices: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Pass:
    plan: Callable[[Program], Plan]
    apply: Callable[[Program, str, str], Program]  # carries out one choice


def optimize(program: Program, *passes: Pass) -> Program:
    for each in passes:
        plan, after = each.plan(program), program
        for choice in plan.choices:
            after = each.apply(after, *choice)
        verify(program, after)
        program = after
    return program


# Our first two passes make room between start and wait. One sinks each wait to just before the first line that depends
# on it; the other hoists each start to just after the last line that it depends on. Chapter 4 says how far that is.


def plan_sinks(program: Program) -> Plan:
    needs = dependencies(program)
    waits = [op.name for op in program.ops if op.target == "wait"]
    choices = tuple((wait, next((name for name in needs if wait in needs[name]), "return")) for wait in waits)
    remarks = tuple(f"%{wait} belongs just before %{reader}, the first to need it" for wait, reader in choices)
    return Plan(choices, remarks)


def plan_hoists(program: Program) -> Plan:
    needs = dependencies(program)
    starts = [op.name for op in reversed(program.ops) if op.group]  # reversed: two that meet keep their order
    choices = tuple((start, max(needs[start], key=program.position)) for start in starts)
    remarks = tuple(f"%{start} belongs just after %{source}, the last it needs" for start, source in choices)
    return Plan(choices, remarks)


def move(program: Program, name: str, anchor: str, offset: int) -> Program:
    rest = [line for line in program.lines if line.name != name]
    at = [line.name for line in rest].index(anchor) + offset
    return Program((*rest[:at], program[name], *rest[at:-1]), program.outputs)


sink_waits = Pass(plan_sinks, partial(move, offset=0))  # directly before its anchor
hoist_starts = Pass(plan_hoists, partial(move, offset=1))  # directly after it

early = parse(TINY.replace("return %f", "%u: [2] = sub_(%w, %w)\n%v: [16] = outer(%f, %f)\nreturn %v"))
assert plan_sinks(early).remarks == ("%f belongs just before %u, the first to need it",)  # not %v: %u writes to %w

overlapped = optimize(step, sink_waits, hoist_starts)
assert " ".join(op.name for op in overlapped.ops) == "x w1 g1 w2 g2 f1 h f2 y d2 r2 dh d1 r1 s2 u2 s1 u1"
assert run(overlapped, data) == run(step, data)  # the same to the last bit: such a pass is called exact
assert optimize(overlapped, sink_waits, hoist_starts) == overlapped  # nothing is left to move
print("\n== Remarks", *plan_sinks(step).remarks, *plan_hoists(step).remarks, sep="\n")
print("\n== The step as written", show(step), "\n== The step, overlapped", show(overlapped), sep="\n")

# ---- 7. What it costs ---------------------------------------------------------------------------------------------
# Is the new order faster? A machine answers with four numbers. An op takes as long as its largest tensor needs; a copy
# is faster than a matmul, and a collective first pays a latency, however little it sends.


@dataclass(frozen=True)
class Machine:
    latency_us: int
    sent_per_us: int = 4
    multiplied_per_us: int = 2
    copied_per_us: int = 16

    def us(self, program: Program, op: Op) -> int:
        elements = max(program[name].size for name in (op.name, *op.refs)) if op.refs else 0  # an input is free
        if op.group:
            return self.latency_us + ceil(elements / self.sent_per_us)
        return ceil(elements / (self.multiplied_per_us if op.target in MATMULS else self.copied_per_us))


# The simulator has one lane for computing and one for each group. A lane is a string in which every character is one
# microsecond, so to draw the step is to simulate it. An op goes to the end of its lane; a collective cannot begin
# before the compute lane has got as far as its start. A wait fills the compute lane with dots, up to the end of its
# collective. Those dots are the exposed time, and the whole point of this file is to have fewer of them.


@dataclass(frozen=True)
class Timeline:
    lanes: dict[str, str]
    step_us: int
    exposed_us: int

    def __str__(self) -> str:
        rows = [f"{name:8}{lane.ljust(self.step_us, '.')}" for name, lane in self.lanes.items()]
        return "\n".join([*rows, f"step {self.step_us} us, exposed {self.exposed_us} us"])


def simulate(program: Program, machine: Machine) -> Timeline:
    lanes, done = {"compute": ""}, dict[str, int]()
    for op in program.ops:
        if op.target == "wait":
            lanes["compute"] = lanes["compute"].ljust(done[op.refs[0]], ".")
            continue
        lane, us = op.group or "compute", machine.us(program, op)
        lanes[lane] = lanes.get(lane, "").ljust(len(lanes["compute"]), ".") + op.name.ljust(us, "=")[:us]
        done[op.name] = len(lanes[lane])
    return Timeline(lanes, len(lanes["compute"]), lanes["compute"].count("."))


near = Machine(latency_us=4)
BEFORE = """\
compute ........h=======........y=======d2======........dh======d1======........uu
dp      g1======........g2======................r2======................r1======..
step 74 us, exposed 32 us"""
AFTER = """\
compute ........h=======y=======d2======dh======d1======u.......u
dp      g1======g2======................r2======........r1======.
step 57 us, exposed 15 us"""
assert str(simulate(step, near)) == BEFORE
assert str(simulate(overlapped, near)) == AFTER
print("\n== The time it takes, before and after", BEFORE, "", AFTER, sep="\n")

# The second gather and the first reduce-scatter have vanished behind the computing. The other two cannot: before the
# first gather has come there is nothing to compute, and after the last gradient almost nothing.

# ---- 8. Buckets ---------------------------------------------------------------------------------------------------
# Two collectives pay two latencies. If they go to the same group, one can do the work of both, as a bucket: concatenate
# the inputs, gather once, cut the result into pieces. The new start stands where the later start stood, for by then
# both inputs are there; the new wait stands where the earlier wait stood. Each piece takes over the name of the wait
# that it replaces, so no reader has to be told.


def merge(program: Program, first: str, second: str) -> Program:
    a, b, both = program[first], program[second], f"{first}_{second}"
    (a_in, a_out), (b_in, b_out) = ((op.refs[0], program.wait_for(op.name)) for op in (a, b))
    cut, end, size = program[a_in].size, program[a_in].size + program[b_in].size, a.size + b.size
    joined, out = f"{both}_in", f"{both}_out"
    start = [Op(joined, "cat", (a_in, b_in), end), Op(both, a.target, (joined,), size, a.group)]
    pieces = [Op(a_out, "piece", (out, 0, cut, end), a.size), Op(b_out, "piece", (out, cut, end, end), b.size)]
    early, late = sorted((a_out, b_out), key=program.position)
    new = {first: [], second: start, early: [Op(out, "wait", (both,), size), *pieces], late: []}
    return Program(tuple(chain.from_iterable(new.get(op.name, [op]) for op in program.ops)), program.outputs)


# A bucket is not always a gift. The copies take time and, what is worse, the first gather now has to wait for the
# second. So the plan asks the simulator, pair by pair, and stops at the first pair that pays. What cannot be merged at
# all is refused with a remark: gathers over two groups, or one that starts only after the other was waited for.


def judge(program: Program, a: Op, b: Op, machine: Machine) -> tuple[bool, str]:
    if a.group != b.group:
        return False, f"one is over {a.group}, the other over {b.group}"
    if program.position(wait := program.wait_for(a.name)) < program.position(b.name):
        return False, f"%{b.name} starts only after %{wait}, the wait for %{a.name}"
    old, new = (simulate(each, machine).step_us for each in (program, merge(program, a.name, b.name)))
    return new < old, f"the step goes from {old} to {new} us"


def plan_bucket(program: Program, machine: Machine) -> Plan:
    remarks: list[str] = []
    for a, b in pairwise(op for op in program.ops if op.target == "all_gather.start"):
        good, why = judge(program, a, b, machine)
        remarks.append(f"{'bucket' if good else 'refuse'} %{a.name} + %{b.name}: {why}")
        if good:
            return Plan(((a.name, b.name),), tuple(remarks))
    return Plan((), tuple(remarks))


# One step, two machines, two right answers. Where latency is low, the gathers are better apart, for the second hides
# behind the first layer. Where the ranks are far from each other, the latency saved outweighs the overlap lost.

far = Machine(latency_us=20)
here, there = plan_bucket(overlapped, near), plan_bucket(overlapped, far)
assert here == Plan((), ("refuse %g1 + %g2: the step goes from 57 to 66 us",))
assert there == Plan((("g1", "g2"),), ("bucket %g1 + %g2: the step goes from 113 to 106 us",))
bucketed = optimize(overlapped, Pass(partial(plan_bucket, machine=far), merge))
assert run(bucketed, data) == run(step, data)  # exact, again
print("\n== Remarks, near and far", *here.remarks, *there.remarks, sep="\n")
print("\n== The step, bucketed for far", show(bucketed), sep="\n")

# Over a group of its own, a gather has its own lane: the two run side by side, but nothing can merge them. And a gather
# of what another has gathered never shares a bucket with it, however far the ranks are.

apart = parse(show(overlapped).replace("(%w2) over dp", "(%w2) over tp"))
assert plan_bucket(apart, far).remarks == ("refuse %g1 + %g2: one is over dp, the other over tp",)
assert simulate(apart, far).step_us == 97
chained = parse(TINY.replace("return %f", "%k: [8] = all_gather.start(%f) over dp\n%z: [8] = wait(%k)\nreturn %z"))
assert plan_bucket(chained, far).remarks == ("refuse %g + %k: %k starts only after %f, the wait for %g",)

# ---- 9. Where to go from here -------------------------------------------------------------------------------------
# This is all of Weft's skeleton. What the real one adds is flesh: tensors with shapes, dtypes and views; a limit on
# memory, since what starts early stays longer; more kinds of collective; measured machines; and torch. You will meet
# every idea again. Begin with ir/program.py: you have already written it once.
#
#     chapter                        room in src/weft/
#     1, 2  Op, Program, text form   ir/
#     3     running on ranks         run/, where ranks may be virtual, and fx/, which goes to torch and back
#     4     dependencies, mutation   analysis/
#     5     the rules                verify/
#     6, 8  sink, hoist, bucket      passes/, and pipeline.py, which runs and verifies them
#     7     machine and timeline     cost/ and sim/, which are being built

print("\nEvery claim in this file holds.")
