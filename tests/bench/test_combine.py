"""`bench.combine` on two workloads of a few hundred ops: its rows, its table, its speed lines, its command."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch._inductor.fx_passes import bucketing
from torch.distributed.distributed_c10d import GroupName

import weft
from bench import combine
from bench.combine import PASSES, WAYS, Figures, Line, Outcome, combined_line, outcomes, sound, table
from bench.combine_speed import growth_rows, ratio_rows, sharded_step
from bench.combine_torch import torch_ddp
from bench.rows import Row
from bench.workloads import WORKLOADS, gpt2
from weft.cli import llama
from weft.cost import Machine
from weft.ir import Program

# All in one worker: what they look at is made once.
pytestmark = pytest.mark.xdist_group("combine")

MACHINE = Machine.load("h100-ib400")
SHARDED = replace(WORKLOADS["llama3_8b_fsdp"], mesh=(("data", 4),), config=llama.llama_tiny())
REPLICATED = replace(WORKLOADS["gpt2_xl_ddp"], mesh=(("data", 4),), config=gpt2.gpt2_tiny(), micro_batch=1)
SAME = "fuse_ddp_communication finds nothing"


@pytest.fixture(scope="module")
def sharded() -> Outcome:
    (found,) = outcomes(SHARDED, MACHINE)
    return found


@pytest.fixture(scope="module")
def both() -> list[Outcome]:
    return list(outcomes(REPLICATED, MACHINE))


@pytest.fixture
def replicated(both: list[Outcome]) -> Outcome:
    return both[0]


def collectives(found: Outcome) -> dict[str, int]:
    return {line.name: line.figures.collectives for line in found.lines if line.figures is not None}


def test_sharded(sharded: Outcome) -> None:
    assert (sharded.workload, sharded.layers, sharded.machine) == ("llama3_8b_fsdp", 2, "h100-ib400")
    assert sound(sharded)
    assert sharded.original.collectives == 62  # 42 gathers, 20 reduce-scatters
    assert collectives(sharded) == {
        "bucket{mode=default}": 2,
        "bucket{mode=custom_op}": 2,
        "bucket{mode=multidtype}": 22,
        "bucket{mode=coalesced}": 2,
        "bucket_auto": 2,
        "ddp_fuse{mode=concat}": 62,
        "ddp_fuse{mode=coalesced}": 62,
        "dedupe": 62,
        "torch bucket default": 2,
        "torch bucket custom_op": 2,
        "torch bucket multidtype": 2,
        "torch bucket coalesced": 2,
        "torch ddp concat": 62,
        "torch ddp coalesced": 62,
    }


def test_replicated(replicated: Outcome) -> None:
    assert sound(replicated)
    assert replicated.original.collectives == 28
    assert collectives(replicated) == {
        "bucket{mode=default}": 1,
        "bucket{mode=custom_op}": 1,
        "bucket{mode=multidtype}": 28,
        "bucket{mode=coalesced}": 1,
        "bucket_auto": 1,
        "ddp_fuse{mode=concat}": 1,
        "ddp_fuse{mode=coalesced}": 1,
        "dedupe": 28,
        "torch bucket default": 1,
        "torch bucket custom_op": 1,
        "torch bucket multidtype": 1,
        "torch bucket coalesced": 1,
        "torch ddp concat": 28,
        "torch ddp coalesced": 28,
    }


def test_as_ddp_writes_it(both: list[Outcome]) -> None:
    found = both[1]
    assert found.workload == "gpt2_xl_ddp as DDP writes it"
    assert sound(found)
    assert found.original.collectives == 28
    assert collectives(found) == {
        "ddp_fuse{mode=concat}": 1,
        "ddp_fuse{mode=coalesced}": 1,
        "torch ddp concat": 1,
        "torch ddp coalesced": 1,
    }


def test_every_row_has_figures_that_add_up(sharded: Outcome, replicated: Outcome) -> None:
    for found in (sharded, replicated):
        assert [line.name for line in found.lines] == list(WAYS)
        for line in found.lines:
            assert line.figures is not None, line.note
            assert line.figures.step_us > line.figures.exposed_us >= 0
            if line.figures.collectives == found.original.collectives and "bucket_auto" not in line.name:
                assert line.figures.kernels_us == pytest.approx(found.original.kernels_us)


def test_coalesced_copies_nothing(sharded: Outcome) -> None:
    (line,) = (line for line in sharded.lines if line.name == "bucket{mode=coalesced}")
    assert line.figures is not None
    assert line.figures.kernels_us == pytest.approx(sharded.original.kernels_us)


def test_what_torch_found_is_told(sharded: Outcome, replicated: Outcome) -> None:
    notes = {line.name: line.note for line in replicated.lines}
    assert notes["torch ddp concat"] == notes["torch ddp coalesced"] == SAME
    assert {line.name: line.note for line in sharded.lines if line.name in PASSES} == dict.fromkeys(PASSES, "")
    nothing = "bucket_all_gather finds nothing"
    assert notes["torch bucket default"] == f"bucket_reduce_scatter finds nothing, bucket_all_reduce 28 to 1, {nothing}"


def averaged() -> Program:
    """Gradients as DDP leaves them: divided, summed over all ranks, returned."""

    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [funcol.all_reduce(gradient / 4, "sum", GroupName("0")) for gradient in (x * 2, y * 3)]

    return weft.capture(step, (torch.ones(8), torch.ones(4)))


@pytest.mark.parametrize("mode", ["concat", "coalesced"])
def test_torch_fuses_what_it_knows(mode: str) -> None:
    with weft.planning({"data": 4}):
        combined = torch_ddp(averaged(), mode)
    assert combined.found == "fuse_ddp_communication 2 to 1"
    assert len(combined.program.starts) == 1


def test_a_way_that_raises_is_a_line_with_its_first_line() -> None:
    def way(program: Program, machine: Machine) -> NoReturn:
        raise AssertionError("no such mode\nmany more lines")

    line = combined_line("torch", way, weft.parse("weft 1\n\nreturn ()\n"), MACHINE)
    assert line == Line("torch", None, "AssertionError: no such mode")


def test_torch_reports_again_afterwards(sharded: Outcome) -> None:
    assert bucketing.logger.level == logging.INFO


def made_up() -> Outcome:
    lines = (
        Line("bucket", Figures(2, 150_000.0, 20_000.0, 120_500.0, 1_100_000_000, 0.25)),
        Line("torch bucket", None, "AssertionError: no"),
        Line("torch ddp concat", Figures(4, 200_000.0, 80_000.0, 119_999.9, 1_000_000_000, 0.0), SAME),
        Line("torch ddp coalesced", Figures(4, 200_000.0, 80_000.0, 120_000.0, 1_000_000_000, 0.0), SAME),
    )
    original = Figures(4, 200_000.0, 80_000.0, 120_000.0, 1_000_000_000, 0.0)
    return Outcome("a model", 2, "a machine", original, lines)


def test_table() -> None:
    assert table(made_up()) == (
        "**a model** (2 layers) on a machine\n"
        "\n"
        "|                     | collectives | step ms | exposed ms | copies ms | peak GB | pass s |\n"
        "|---------------------|------------:|--------:|-----------:|----------:|--------:|-------:|\n"
        "| original            |           4 |  200.00 |      80.00 |      0.00 |    1.00 |   0.00 |\n"
        "| bucket              |           2 |  150.00 |      20.00 |      0.50 |    1.10 |   0.25 |\n"
        "| torch bucket        |      failed |         |            |           |         |        |\n"
        "| torch ddp concat    |           4 |  200.00 |      80.00 |      0.00 |    1.00 |   0.00 |\n"
        "| torch ddp coalesced |           4 |  200.00 |      80.00 |      0.00 |    1.00 |   0.00 |\n"
        "\n"
        "torch bucket: AssertionError: no\n"
        "torch ddp concat, torch ddp coalesced: fuse_ddp_communication finds nothing"
    )


def test_weft_that_fails_is_unsound_and_torch_is_not() -> None:
    assert sound(made_up())
    assert not sound(replace(made_up(), lines=(Line(PASSES[0], None, "VerifyError: no"),)))


def test_speed_beside_torch() -> None:
    rows = ratio_rows(SHARDED)
    assert [row.limit for row in rows] == [inf, inf, inf, inf, 0.1, inf]
    torchs, plan, apply, verify, ratio, whole = (row.found for row in rows)
    assert ratio == pytest.approx((plan + apply) / torchs)
    assert whole == pytest.approx((plan + apply + verify) / torchs)


def test_growth_is_by_op() -> None:
    rows = growth_rows(480, 960)
    assert [row.what for row in rows] == [
        "462 ops, 30 collectives: bucket, plan and apply",
        "462 ops, 30 collectives: bucket, verify",
        "922 ops, 60 collectives: bucket, plan and apply",
        "922 ops, 60 collectives: bucket, verify",
        "an op among 922 ÷ an op among 462: plan and apply",
        "an op among 922 ÷ an op among 462: verify",
    ]
    assert [row.limit for row in rows] == [inf, inf, inf, inf, 1.5, inf]
    small, _, large, _, growth, _ = (row.found for row in rows)
    assert growth == pytest.approx(large / small / (922 / 462))


def test_sharded_step_is_a_program() -> None:
    program = weft.parse(sharded_step(96, width=16))
    weft.verify(program)
    assert [op.comm.kind for op in program.starts if op.comm is not None] == [
        *["all_gather"] * 3,
        "reduce_scatter",
        "all_gather",
        "reduce_scatter",
    ]


@pytest.mark.parametrize(("speed", "found", "code"), [(True, 0.05, 0), (True, 0.2, 1), (False, 0.2, 0)])
def test_command(
    speed: bool,
    found: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = Row("bucket ÷ torch", found, "", 0.1)
    monkeypatch.setattr(combine, "WORKLOADS", {SHARDED.name: SHARDED})
    monkeypatch.setattr(combine, "WAYS", {PASSES[0]: WAYS[PASSES[0]]})
    monkeypatch.setattr(combine, "speed_rows", lambda: iter([row]))
    written = tmp_path / "out.json"
    words = ["combine", "--workloads", SHARDED.name, "--layers", "1", "--json", str(written)]
    monkeypatch.setattr(sys, "argv", [*words, *([] if speed else ["--no-speed"])])
    with pytest.raises(SystemExit) as end:
        combine.main()
    assert end.value.code == code
    (one,) = json.loads(written.read_text())
    assert one["layers"] == 1
    assert [line["name"] for line in one["lines"]] == [PASSES[0]]
    assert capsys.readouterr().out.endswith("\n\n" + (f"{row}\n" if speed else ""))
