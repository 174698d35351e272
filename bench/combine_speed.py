"""What `bucket` costs beside torch's bucketing of the same graph, and how that grows. Part of `bench.combine`.

Times are CPU seconds of this process, the best of several runs, each with a program of which nothing is known yet.
Python's garbage collector is off in all of them, for torch too: `weft.optimize` turns it off, and its time grows with
all that a process holds, not with the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from time import process_time

import weft
from bench.capture import captured_on
from bench.combine_torch import bucket_graph
from bench.rows import Row
from bench.workloads import WORKLOADS, Workload
from weft.ir import Program
from weft.ir.pause import no_collection
from weft.passes.base import Context
from weft.passes.bucket import BucketPass

# About 10,000 ops with about 600 collectives: one has all-reduces, the other gathers and reduce-scatters.
BESIDE = (WORKLOADS["gpt2_xl_ddp"], WORKLOADS["llama3_8b_fsdp"].with_layers(24))
FEW, MANY = 10_000, 100_000
RUNS = 3

RATIO = 0.1  # of the time of torch's bucketing
GROWTH = 1.5  # an op among many to an op among few, as much as the simulator is allowed


@dataclass(frozen=True)
class Seconds:
    plan: float
    apply: float
    verify: float

    @property
    def work(self) -> float:
        return self.plan + self.apply

    @property
    def total(self) -> float:
        return self.work + self.verify


def bucket_seconds(fresh: Callable[[], Program], runs: int = RUNS) -> Seconds:
    """What `bucket` takes for a program that `fresh` makes anew each time."""
    return min((_once(fresh()) for _ in range(runs)), key=lambda seconds: seconds.total)


def _once(program: Program) -> Seconds:
    one = BucketPass()
    with no_collection():
        begin = process_time()
        plan = one.plan(program, Context.of(program))
        planned = process_time()
        made = one.apply(program, plan)
        applied = process_time()
        weft.verify(program, made, reorders=one.reorders)
        return Seconds(planned - begin, applied - planned, process_time() - applied)


def ratio_rows(workload: Workload) -> list[Row]:
    """`bucket` beside torch's bucketing. The time that torch needs to sort the graph again is not counted."""
    with weft.planning(dict(workload.mesh)) as mesh:
        program = captured_on(mesh, workload)
        torchs = min(bucket_graph(weft.to_fx(program), "default")[0] for _ in range(RUNS))
        graph = weft.to_fx(program)
        own = bucket_seconds(lambda: weft.from_fx(graph))
    what = f"{workload.name}, {len(program):,} ops, {len(program.starts):,} collectives"
    return [
        Row(f"{what}: torch", torchs, "s", inf),
        Row("bucket: plan", own.plan, "s", inf),
        Row("bucket: apply", own.apply, "s", inf),
        Row("bucket: verify", own.verify, "s", inf),
        Row("bucket: plan and apply ÷ torch", own.work / torchs, "", RATIO),
        Row("bucket: plan, apply and verify ÷ torch", own.total / torchs, "", inf),
    ]


def growth_rows(few: int = FEW, many: int = MANY) -> list[Row]:
    """How much longer an op takes in a program of many ops."""
    small, large = sharded_step(few), sharded_step(many)
    rows, found = [], []
    for text in (small, large):
        program = weft.parse(text)
        seconds = bucket_seconds(partial(weft.parse, text))
        found.append((len(program), seconds))
        what = f"{len(program):,} ops, {len(program.starts):,} collectives"
        rows.append(Row(f"{what}: bucket, plan and apply", seconds.work, "s", inf))
        rows.append(Row(f"{what}: bucket, verify", seconds.verify, "s", inf))
    (few_ops, less), (many_ops, more) = found
    what, times = f"an op among {many_ops:,} ÷ an op among {few_ops:,}", many_ops / few_ops
    rows.append(Row(f"{what}: plan and apply", more.work / less.work / times, "", GROWTH))
    rows.append(Row(f"{what}: verify", more.verify / less.verify / times, "", inf))
    return rows


def sharded_step(ops: int, width: int = 1024) -> str:
    """The text of a step of a deep model whose weights are sharded: about `ops` ops, one in 16 a collective.

    Each layer gathers its weight, a square of this width, forward and backward, and scatters its gradient.
    """
    whole, part, layers = f"bf16[{width},{width}]", f"bf16[{width // 8},{width}]", ops // 48
    lines = ["weft 1", 'group "dp" = 0..7', f"%x0: {whole} = input()"]
    lines += [f"%w{layer}: {part} = input()" for layer in range(layers)]
    for layer in range(layers):
        lines += _gathered(f"f{layer}", f"%w{layer}", whole)
        lines += _computed(f"x{layer + 1}", f"%x{layer}", f"%f{layer}", whole)
    lines.append(f"%g{layers}: {whole} = aten.relu.default(%x{layers})")
    for layer in reversed(range(layers)):
        lines += _gathered(f"b{layer}", f"%w{layer}", whole)
        lines.append(f"%p{layer}: {whole} = aten.mm.default(%x{layer}, %g{layer + 1})")
        lines.append(f'%p{layer}_start: {part} = reduce_scatter.start(%p{layer}) avg over "dp"')
        lines.append(f"%p{layer}_there: {part} = wait(%p{layer}_start)")
        lines += _computed(f"g{layer}", f"%g{layer + 1}", f"%b{layer}", whole)
    gradients = ", ".join(f"%p{layer}_there" for layer in range(layers))
    return "\n".join([*lines, f"return %g0, {gradients}", ""])


def _gathered(name: str, weight: str, whole: str) -> list[str]:
    return [
        f'%{name}_start: {whole} = all_gather.start({weight}) over "dp"',
        f"%{name}: {whole} = wait(%{name}_start)",
    ]


def _computed(name: str, x: str, weight: str, whole: str) -> Iterator[str]:
    """A product and 18 ops behind it, of which the last one has the name."""
    yield f"%{name}_0: {whole} = aten.mm.default({x}, {weight})"
    for number in range(1, 18):
        yield f"%{name}_{number}: {whole} = aten.add.Tensor(%{name}_{number - 1}, {x})"
    yield f"%{name}: {whole} = aten.mul.Tensor(%{name}_17, {x})"


def speed_rows() -> Iterator[Row]:
    for workload in BESIDE:
        yield from ratio_rows(workload)
    yield from growth_rows()
