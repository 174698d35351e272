"""Every workload is captured the way that the benchmark captures it, and every op of it is checked."""

from __future__ import annotations

from collections import Counter

import pytest

import weft
from bench.capture import captured
from bench.workloads import WORKLOADS

# Two layers at full width: what every rank starts. A parameter of a sharded model is gathered once, and again if the
# backward reads it; the table of tokens is the one that is not. Tensor parallelism moves activations, and sums up the
# gradients of the five norms, of which each rank has seen its part of the sequence.
EXPECTED: dict[str, dict[str, int]] = {
    "gpt2_xl_ddp": {"all_reduce": 2 * 12 + 4},
    "llama3_8b_fsdp": {"all_gather": 2 * (2 * 9 + 3) - 1, "reduce_scatter": 2 * 9 + 3},
    "llama3_70b_fsdp_tp8": {
        "all_gather": 2 * (2 * 9 + 3) - 1 + 11,
        "reduce_scatter": 2 * 9 + 3 + 10,
        "all_reduce": 5,
    },
    "llama3_8b_hsdp": {"all_gather": 2 * (2 * 9 + 3) - 1, "reduce_scatter": 2 * 9 + 3, "all_reduce": 2 * 9 + 3},
    "llama3_8b_tp8_sp": {"all_gather": 11, "reduce_scatter": 10, "all_reduce": 5},
    "mixtral_ep8": {"all_gather": 2 * (2 * 10 + 3) - 1, "reduce_scatter": 2 * 10 + 3, "all_to_all": 2 * 4},
    "vit_l16_ddp": {"all_reduce": 2 * 12 + 8},
    "tiny_parameters_ddp": {"all_reduce": 2 * 4 + 2},
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_captured_with_all_its_collectives(name: str) -> None:
    program = captured(WORKLOADS[name].with_layers(2))
    weft.verify(program)
    assert dict(Counter(op.comm.kind for op in program.starts if op.comm is not None)) == EXPECTED[name]
    assert [op.name for op in program.starts if not op.origin] == []
