"""`halve`: an all-reduce becomes a reduce-scatter and an all-gather, each of which can be hidden by another matmul."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from weft.analysis.pairs import pairs
from weft.errors import PlanError
from weft.ir.args import Arg, Ref
from weft.ir.editor import Editor
from weft.ir.program import Collective, Op, Program
from weft.ir.specs import TensorSpec
from weft.ir.targets import traits_of
from weft.passes.base import Context, Plan, Remark, Step, check_fits, fingerprint
from weft.passes.knots import is_written
from weft.passes.micro_pipeline import MicroPipeline
from weft.passes.options import pass_text
from weft.passes.parts import exposed
from weft.passes.regions import chains
from weft.passes.results import not_just_waited


@dataclass(frozen=True)
class Halve:
    """Halve all-reduces where `micro_pipeline` can then hide the halves, as in tensor parallelism without sequence
    parallelism: the first behind the matmul that makes what is reduced, the second behind the one that uses it.

    - `always`: halve all that can be halved, whatever it costs
    """

    name: ClassVar[str] = "halve"
    exact: ClassVar[bool] = False  # the halves may sum in another order
    reorders: ClassVar[bool] = True

    always: bool = False

    def plan(self, program: Program, context: Context) -> Plan:
        """A step for each all-reduce that is halved, a remark for each."""
        steps, remarks = [], []
        reasons = {op.name: _refusal(program, op) for op in program.starts if op.comm and op.comm.kind == "all_reduce"}
        able = [name for name, why in reasons.items() if why is None]
        hidden = set(able) if self.always else self._hidden(program, able, context)
        for name, why in reasons.items():
            if name in hidden:
                steps.append(Step("halve", (name,)))
                gain = "" if self.always else ", which matmuls can hide"
                remarks.append(Remark(self.name, name, "done", f"a reduce-scatter and an all-gather{gain}"))
            else:
                remarks.append(Remark(self.name, name, "refused", why or "its halves would not be hidden any better"))
        return Plan(pass_text(self), fingerprint(program), tuple(steps), tuple(remarks))

    def _hidden(self, program: Program, able: list[str], context: Context) -> set[str]:
        """The all-reduces of which a half is cut or goes inside a matmul, if all that are exposed are halved."""
        held = (
            {op.name for op in exposed(program, context.needed_cost(self.name), context.memory_limit)} if able else ()
        )
        exposed_ones = [name for name in able if name in held]
        able = _at_matmuls(program, exposed_ones) if exposed_ones else []
        if not able:
            return set()
        halved = _halved(program, able, "")
        cut = {name for step in MicroPipeline().plan(halved, context).steps for name in step.ops}
        return {source for name in cut for source in halved[name].sources if source in able}

    def apply(self, program: Program, plan: Plan) -> Program:
        """Halve what the plan says."""
        check_fits(plan, program)
        if not plan.steps:
            return program.stamped(plan.pass_text)
        for step in plan.steps:
            fits = len(step.ops) == 1 and step.ops[0] in program and program[step.ops[0]].is_start
            why = _refusal(program, program[step.ops[0]]) if fits else "there is no such collective"
            if step.verb != "halve" or why is not None:
                raise PlanError(f"this cannot be halved in this program: {step}: {why}")
        return _halved(program, [step.ops[0] for step in plan.steps], plan.pass_text)


def _at_matmuls(program: Program, names: list[str]) -> list[str]:
    """Those of which a half could be cut with a matmul; not such as gradients of norms."""
    halved = _halved(program, names, "")
    halves = [op for op in halved.starts if not {*op.sources}.isdisjoint(names)]
    _, refused = chains(halved, halves)
    left = {source for op in halves if op.name not in refused for source in op.sources}
    return [name for name in names if name in left]


def _refusal(program: Program, start: Op) -> str | None:
    """Why an all-reduce cannot be halved; None if it can."""
    comm, sent = start.comm, start.args[0]
    if comm is None or start.target != "all_reduce.start" or not isinstance(sent, Ref):
        return "it is written in a form that is not halved"
    if comm.reduce_op not in ("sum", "avg"):
        return f"{comm.reduce_op} is no sum"
    if comm.group.size < 2 or len(pairs(program).waits[start.name]) != 1:
        return "it is a group of one, or not waited for once"
    if (why := not_just_waited(program, start)) is not None:
        return why
    if is_written(program, start):
        return "its result is written to in place"
    spec = program[sent.name].out[0]
    (made,) = start.out
    if isinstance(made, TensorSpec) and (made.device or made.strides is not None):
        return "its result lies on another device, or not row by row"
    rows = _rows(spec)
    if rows is None or rows % comm.group.size:
        return f"its rows cannot be divided among {comm.group.size} ranks"
    return None


def _rows(spec: object) -> int | None:
    """How many rows a tensor has, if its last dimension is what a row is; None if that is not known."""
    if not isinstance(spec, TensorSpec) or not spec.shape:
        return None
    sizes = [size for size in spec.shape if isinstance(size, int)]
    return prod(sizes[:-1] or sizes) if len(sizes) == len(spec.shape) else None


def _halved(program: Program, names: Iterable[str], stamp: str) -> Program:
    editor = Editor(program)
    for name in names:
        _halve(program, editor, program[name])
    return editor.finish(stamp)


def _halve(program: Program, editor: Editor, start: Op) -> None:
    """Both halves, with views as rows before and after where it is not in rows."""
    (wait,) = pairs(program).waits[start.name]
    sent, comm = start.refs()[0], start.comm
    assert comm is not None
    spec = program[sent.name].out[0]
    rows = _rows(spec)
    assert isinstance(spec, TensorSpec)
    assert rows is not None, "what is halved has rows"
    whole = TensorSpec((rows, *spec.shape[max(1, len(spec.shape) - 1) :]), spec.dtype)
    part = replace(whole, shape=(rows // comm.group.size, *whole.shape[1:]))

    def add(anchor: str, name: str, target: str, given: tuple[Arg, ...], out: TensorSpec, of: str = "") -> Ref:
        how = {"reduce_scatter.start": scatter, "all_gather.start": gather}.get(target)
        op = Op(name, target, given, {}, (out,), traits_of(target), how, start.origin, (of,) if of else ())
        return editor.insert_before(anchor, op)

    scatter, gather = replace(comm, kind="reduce_scatter"), Collective("all_gather", comm.group)
    view = "aten.view.default" if spec.strides is None else "aten.reshape.default"
    given = add(start.name, "rows", view, (sent, whole.shape), whole) if spec != whole else sent
    first = add(start.name, "scattered", "reduce_scatter.start", (given,), part, start.name)
    done = add(start.name, "scattered_done", "wait", (first,), part)
    second = add(start.name, "gathered", "all_gather.start", (done,), whole, start.name)
    if spec == whole:
        result = add(wait, "gathered_done", "wait", (second,), whole, wait)
    else:
        found = add(wait, "gathered_done", "wait", (second,), whole)
        result = add(
            wait, "reduced", "aten.view.default", (found, spec.shape), TensorSpec(spec.shape, spec.dtype), wait
        )
    editor.remove(wait, use=result.name)
    editor.remove(start.name)
