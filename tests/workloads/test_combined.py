"""Every workload is safe after its collectives were merged, in each way, and is lowered to what the program says."""

from __future__ import annotations

from functools import cache

import pytest

import weft
from bench.capture import captured
from bench.workloads import WORKLOADS
from weft import Machine, Program, pipeline

MODES = ("default", "custom_op", "multidtype", "coalesced", "coalesced_pack")
# What is left of the collectives of two layers, in the order of MODES. Only gathers can be sent as bytes.
EXPECTED: dict[str, tuple[int, ...]] = {
    "gpt2_xl_ddp": (2, 2, 28, 2, 2),
    "llama3_8b_fsdp": (26, 26, 38, 26, 26),
    "llama3_70b_fsdp_tp8": (40, 40, 56, 40, 40),
    "llama3_8b_hsdp": (40, 40, 59, 40, 40),
    "llama3_8b_tp8_sp": (22, 22, 26, 22, 22),
    "mixtral_ep8": (34, 34, 48, 34, 34),
    "vit_l16_ddp": (1, 1, 32, 1, 1),
    "tiny_parameters_ddp": (1, 1, 10, 1, 1),
}


@cache
def workload(name: str) -> Program:
    return captured(WORKLOADS[name].with_layers(2))


def merged(program: Program, passes: str) -> Program:
    """The program after a pass: verified, and lowered, where torch finds the shapes and layouts that Weft wrote."""
    chosen = weft.parse_pipeline(passes, weft.PASSES)
    made = pipeline.run(program, chosen, cost=Machine.load("h100-ib400")).program
    weft.verify(program, made, reorders=True)
    lowered = weft.from_fx(weft.to_fx(made), groups={group.name: group.ranks for group in made.groups})
    assert [(op.name, op.out) for op in lowered.ops] == [(op.name, op.out) for op in made.ops]
    return made


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_mode_is_safe(name: str) -> None:
    program = workload(name)
    assert tuple(len(merged(program, f"bucket{{mode={mode}}}").starts) for mode in MODES) == EXPECTED[name]


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("mode", MODES)
def test_chosen_buckets_are_safe_and_never_slower(name: str, mode: str) -> None:
    program, machine = workload(name), Machine.load("h100-ib400")
    made = merged(program, f"bucket_auto{{mode={mode}}}")
    assert weft.simulate(made, machine).step_us <= weft.simulate(program, machine).step_us
