"""The order that was planned is the order of the code that Inductor generates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor
from torch._inductor import config
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import weft
from tests.run.training import BATCH, WIDTH, Net
from weft import Program
from weft.cli.llama import Llama, LlamaConfig
from weft.parallel import data_parallel
from weft.run.hook import WeftPass
from weft.run.settings import Settings

# What shows up in the code as one call.
_CALLS = re.compile(r"torch\.ops\._c10d_functional\.(\w+)\.default\(|extern_kernels\.(\w*mm)\(")
_TARGETS = {
    "all_gather.start": "all_gather_into_tensor",
    "all_reduce.start": "all_reduce",
    "reduce_scatter.start": "reduce_scatter_tensor",
    "wait": "wait_tensor",
    "aten.mm.default": "mm",
    "aten.addmm.default": "addmm",
}


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def planned(program: Program) -> list[str]:
    return [_TARGETS[op.target] for op in program.ops if op.target in _TARGETS]


def written(code: str) -> list[str]:
    """The calls that a generated module makes, in order."""
    lines = [line.strip() for line in code[code.index("def call(") :].splitlines()]
    found = [_CALLS.match(line.split(" = ")[-1] if " = " in line else line) for line in lines]
    return [(call[1] or call[2]).rstrip("_").removesuffix("_coalesced") for call in found if call is not None]


def sharded() -> torch.nn.Module:
    torch.manual_seed(0)
    return data_parallel(Net(checkpointed=False), init_device_mesh("cpu", (2,)), "fully_shard")


def step(model: Any, x: Tensor) -> None:
    model(x).square().mean().backward()


def test_starts_waits_and_matmuls_come_out_as_planned() -> None:
    torch._dynamo.reset()
    model = weft.compile(sharded(), machine="h100-ib400")
    _, codes = run_and_get_code(step, model, torch.ones(BATCH, WIDTH))
    plans = [_after(role) for role in ("forward", "backward")]
    assert [written(code) for code in codes] == [planned(plan) for plan in plans]
    assert any(len(plan.starts) < 12 for plan in plans)  # there was something to be planned
    for code in codes:
        assert_waited_for_before_use(code)


def test_a_gradient_is_sent_before_what_a_kernel_that_might_be_fused_with_its_own_waits_for() -> None:
    """Inductor likes to sum the gradients of two norms in one kernel, and the second needs matmuls that come later."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = LlamaConfig(vocabulary=64, width=64, layers=2, heads=2, kv_heads=2, hidden=96, context=32)
    model = data_parallel(Llama(config), init_device_mesh("cpu", (2,)), "replicate")
    compiled = weft.compile(model, machine="gloo-cpu", passes="schedule")
    tokens = torch.zeros(8, config.context, dtype=torch.long)
    _, codes = run_and_get_code(step, compiled, tokens)
    assert [call for call in written(codes[1]) if call != "wait_tensor"] == [
        call for call in planned(_after("backward")) if call != "wait_tensor"
    ]


def test_inductor_alone_would_bring_it_into_another_order() -> None:
    torch._dynamo.reset()
    found: list[Program] = []

    class Watched(WeftPass):
        def accepted(self, decision: Any) -> bool:
            found.append(decision.program)
            return True

        def uuid(self) -> None:
            return None

    with config.patch(post_grad_custom_post_pass=Watched(Settings(machine="h100-ib400"))):
        _, codes = run_and_get_code(step, torch.compile(sharded()), torch.ones(BATCH, WIDTH))
    assert [written(code) for code in codes] != [planned(plan) for plan in found]


def assert_waited_for_before_use(code: str) -> None:
    """Between its start and its wait, nobody touches what a collective receives."""
    flying: set[str] = set()
    for line in code[code.index("def call(") :].splitlines():
        text = line.strip()
        if (wait := re.match(r"torch\.ops\._c10d_functional\.wait_tensor\.default\((\w+)\)", text)) is not None:
            flying.discard(wait[1])
        elif "_c10d_functional" in text and (start := re.match(r"(\w+) = ", text)) is not None:
            flying.add(start[1])
        elif (part := re.match(r"(\w+) = (\w+)\[\d+\]$", text)) is not None and part[2] in flying:
            flying.add(part[1])
        elif not re.match(r"(assert_|del |\w+ = None|#)", text):
            assert flying.isdisjoint(re.findall(r"\bbuf\d+\b", text)), text


def _after(role: str) -> Program:
    report = weft.last_report(role)
    assert report is not None
    assert report.program_after is not None
    return report.program_after
