"""What the foundation costs: import, text, round trip, ancestors. Prints every number that the README claims of it.

    python -m bench.foundation            # all
    python -m bench.foundation --json

Times are CPU seconds of this process, the best of several runs; what is compared is compared within one run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from random import Random
from time import process_time
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

import weft
from bench.rows import Row, best_of, report
from weft import pipeline
from weft.analysis import ancestors, dependencies, memory

NODES = 10_000
MANY = 100_000


def training_graph(nodes: int) -> GraphModule:
    """A graph like that of a sharded model: per weight a gather, a wait, a view, a matmul and a few pointwise ops."""
    graph = Graph()
    aten, c10d = torch.ops.aten, torch.ops._c10d_functional
    with FakeTensorMode():
        small, large = torch.empty(32, 256), torch.empty(256, 256)
    turned = large.t()

    def note(node: Any, value: torch.Tensor, number: int) -> Any:
        node.meta.update(
            val=value,
            seq_nr=number,
            stack_trace=f'File "model.py", line {number % 97}, in forward\n  x = self.layer(x)',
            nn_module_stack={"a": (f"layers.{number // 20}.mlp", torch.nn.Linear)},
            original_aten=aten.mm.default,
            partitioner_tag="is_forward",
        )
        return node

    shards = [note(graph.placeholder(f"w{i}"), small, i) for i in range(max(1, nodes // 100))]
    x = note(graph.placeholder("x"), large, 0)
    while len(graph.nodes) < nodes:
        number = len(graph.nodes)
        gathered = note(
            graph.call_function(c10d.all_gather_into_tensor.default, (shards[number % len(shards)], 8, "dp")),
            large,
            number,
        )
        waited = note(graph.call_function(c10d.wait_tensor.default, (gathered,)), large, number)
        weight = note(graph.call_function(aten.permute.default, (waited, [1, 0])), turned, number)
        y = note(graph.call_function(aten.mm.default, (x, weight)), large, number)
        for function in (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.add.Tensor, aten.mul.Tensor):
            y = note(graph.call_function(function, (y, x)), large, number)
        x = note(graph.call_function(aten.relu.default, (y,)), large, number)
    graph.output((x,))
    return GraphModule(torch.nn.Module(), graph)


def import_rows() -> list[Row]:
    code = "import sys,time;b=time.process_time();import weft;e=time.process_time();print(e-b,'torch' in sys.modules)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    seconds, torch_too = min(run.stdout.split() for run in runs)
    return [
        Row("import weft", float(seconds), "s", 0.2),
        Row("import weft imports torch (0 no, 1 yes)", float(torch_too == "True"), "", 0),
    ]


def round_trip_rows() -> list[Row]:
    module = training_graph(NODES)
    copying = best_of(5, lambda: Graph().graph_copy(module.graph, {}))
    ranks = {"dp": range(8)}
    there = best_of(5, lambda: weft.from_fx(module, groups=ranks))
    both = best_of(5, lambda: weft.to_fx(weft.from_fx(module, groups=ranks)))
    program = weft.from_fx(module, groups=ranks)
    text = weft.print_program(program)
    assert weft.parse(text) == program
    return [
        Row(f"torch.fx graph_copy, {NODES:,} nodes", copying, "s", float("inf")),
        Row("from_fx ÷ graph_copy", there / copying, "", 3),
        Row("(from_fx + to_fx) ÷ graph_copy", both / copying, "", 3),
        Row(f"print {len(program):,} ops", best_of(5, lambda: weft.print_program(program)), "s", 1),
        Row(f"parse {len(program):,} ops", best_of(5, lambda: weft.parse(text)), "s", 1),
        Row(
            f"plan, apply and verify sink_waits, {len(program):,} ops",
            min(_sink(text) for _ in range(3)),
            "s",
            float("inf"),
        ),
    ]


def _sink(text: str) -> float:
    """The seconds that a pass and its verification take on a program that nothing is known of yet."""
    program = weft.parse(text)
    begin = process_time()
    pipeline.run(program, weft.parse_pipeline("sink_waits", weft.PASSES))
    return process_time() - begin


def ancestor_rows() -> list[Row]:
    """In a process of its own: the peak of memory is the process's."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.foundation", "--ancestors"], capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout)
    return [
        Row(f"dependencies of {MANY:,} ops", figures["dependencies_s"], "s", float("inf")),
        Row(f"memory of {MANY:,} ops", figures["memory_s"], "s", float("inf")),
        Row(f"all ancestors of {MANY:,} ops", figures["ancestors_s"], "s", float("inf")),
        Row("one ancestor query, 10,000 ops", figures["query_small_us"], "us", float("inf")),
        Row(f"one ancestor query, {MANY:,} ops", figures["query_us"], "us", float("inf")),
        Row(f"peak memory of the process, {MANY:,} ops", figures["peak_gb"], "GB", 2),
    ]


def measure_ancestors() -> dict[str, float]:
    figures = {"query_small_us": _query_us(NODES, {})}
    figures["query_us"] = _query_us(MANY, figures)
    figures["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return figures


def _query_us(count: int, figures: dict[str, float]) -> float:
    random = Random(0)
    lines = ["weft 1", "%v0: f32[8] = input()"]
    for i in range(1, count):
        near, far = i - 1, max(0, i - random.randrange(1, 2000))
        lines.append(f"%v{i}: f32[8] = aten.add.Tensor(%v{near if i % 3 else far}, %v{far})")
    program = weft.parse("\n".join([*lines, f"return %v{count - 1}"]))
    figures["dependencies_s"] = best_of(1, lambda: dependencies(program))
    figures["memory_s"] = best_of(1, lambda: memory(program))
    begin = process_time()
    known = ancestors(program)
    figures["ancestors_s"] = process_time() - begin
    pairs = [(random.randrange(count), random.randrange(count)) for _ in range(100_000)]

    def ask() -> None:
        for earlier, later in pairs:
            known(earlier, later)

    return best_of(3, ask) / len(pairs) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--ancestors", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ancestors:
        print(json.dumps(measure_ancestors()))
        return
    report((import_rows, round_trip_rows, ancestor_rows), as_json=args.json)


if __name__ == "__main__":
    main()
