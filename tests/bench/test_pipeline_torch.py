"""torch's micro-pipelining on a tensor-parallel Llama of one layer: what it finds in which form, what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch.distributed as dist
from torch._inductor import config
from torch._inductor.fx_passes import micro_pipeline_tp
from torch.distributed import _symmetric_memory
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import GroupName

import weft
from bench.capture import captured_on
from bench.pipeline_torch import Pipelined, forward_on, torch_pipeline
from bench.workloads import WORKLOADS, Workload

ONE = WORKLOADS["llama3_8b_tp8_sp"].with_layers(1)
TWO = replace(ONE, micro_batch=2)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with weft.planning(dict(ONE.mesh)) as made:
        yield made


def found(pipelined: Pipelined) -> tuple[str, str, str]:
    return (
        f"{pipelined.fused_gathers} of {pipelined.gathers} gathers",
        f"{pipelined.fused_scatters} of {pipelined.scatters} scatters",
        pipelined.reason,
    )


@pytest.mark.parametrize(
    ("workload", "form", "gathers", "scatters"),
    [
        (ONE, "captured", "0 of 7 gathers", "0 of 6 scatters"),
        (ONE, "inductor", "0 of 7 gathers", "3 of 6 scatters"),
        (TWO, "inductor", "5 of 7 gathers", "3 of 6 scatters"),
    ],
    ids=["captured", "one sample", "two samples"],
)
def test_step(mesh: DeviceMesh, workload: Workload, form: str, gathers: str, scatters: str) -> None:
    assert found(torch_pipeline(captured_on(mesh, workload), form=form)) == (gathers, scatters, "")


def test_forward(mesh: DeviceMesh) -> None:
    assert found(torch_pipeline(forward_on(mesh, TWO))) == ("3 of 4 gathers", "2 of 3 scatters", "")


def test_other_groups_do_not_count() -> None:
    workload = replace(WORKLOADS["llama3_70b_fsdp_tp8"].with_layers(1), mesh=(("data", 2), ("tensor", 8)))
    with weft.planning(dict(workload.mesh)) as mesh:
        program = forward_on(mesh, workload)
        every = torch_pipeline(program, form="captured")
        own = torch_pipeline(program, form="captured", group=mesh["tensor"].get_group().group_name)
    assert (every.gathers, own.gathers) == (16, 4)


def test_what_it_raises_is_reported(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: object) -> None:
        raise ValueError("no such pattern\nand more")

    monkeypatch.setattr(micro_pipeline_tp, "micro_pipeline_tp_pass", broken)
    assert found(torch_pipeline(forward_on(mesh, ONE), form="captured")) == (
        "0 of 4 gathers",
        "0 of 3 scatters",
        "ValueError: no such pattern",
    )


def test_torch_is_as_it_was(mesh: DeviceMesh) -> None:
    torch_pipeline(forward_on(mesh, ONE), form="captured")
    assert not config._micro_pipeline_tp
    assert not dist.is_nccl_available()
    assert not _symmetric_memory.is_symm_mem_enabled_for_group(GroupName("0"))
