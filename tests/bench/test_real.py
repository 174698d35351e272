"""`bench.real`: tiny trainings from end to end, what is printed, and what is promised."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench import real
from bench.contenders import COMPILED, OVERLAP, REORDER, WEFT, WRITTEN, silenced
from bench.real import Task
from bench.real_cases import Case, Part, Row, table, verdicts
from bench.trainings import SIZES, Size, apart
from weft.cli.llama import llama_tiny
from weft.errors import WeftError
from weft.run import local_ranks
from weft.run.hosts import why_no_link
from weft.run.measuring import Spread
from weft.run.samples import Effort

TINY = Size(replace(llama_tiny(), layers=1), samples=2)
HASTY = Effort(rounds=1, sample_s=1e-4, growth=64, longest_s=1e-4)

linked = pytest.mark.skipif(why_no_link() is not None, reason=f"no link with a rate: {why_no_link()}")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """`bench.real` with tiny models; the list is filled with the cases that a run finds."""
    found: list[Case] = []
    run = real.run

    def noted(task: Task) -> list[Case]:
        found.extend(run(task))
        return found

    monkeypatch.setattr(real, "SIZES", dict.fromkeys(SIZES, TINY))
    monkeypatch.setattr(real, "EFFORT", HASTY)
    monkeypatch.setattr(real, "run", noted)
    return found


@linked
@pytest.mark.gloo
def test_tiny_training_over_a_link(tiny: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "real.json"
    ways = f"{WRITTEN},{WEFT}"  # each way that Inductor compiles takes long
    with pytest.raises(SystemExit) as end:
        real.main(["--kinds", "ddp", "--ratios", "2", "--ways", ways, "--repetitions", "1", "--json", str(path)])
    (case,) = tiny
    assert (case.kind, case.ratio) == ("ddp", 2.0)
    assert case.bits_per_s is not None
    assert [row.name for row in case.rows] == [WRITTEN, WEFT]
    assert case.rows[0].apart == 0
    assert all(0 <= row.apart <= real.TOLERANCE for row in case.rows)
    assert case.parts[0].communication_us < case.parts[1].communication_us  # all of it is in the backward
    told = verdicts(case)
    assert end.value.code == (0 if all(line.holds for line in told) else 1)
    assert capsys.readouterr().out == table(case) + "\n\n" + "\n".join(map(str, told)) + "\n"
    assert json.loads(path.read_text()) == json.loads(json.dumps([asdict(case)]))


# What is measured


class Exchange(nn.Module):
    """All that a collective can be replaced for, and something to compute."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def forward(self, own: torch.Tensor) -> torch.Tensor:
        ops = torch.ops._c10d_functional
        full = ops.wait_tensor(ops.all_gather_into_tensor(own * 2, 2, self.group))
        part = ops.wait_tensor(ops.reduce_scatter_tensor(full + 1, "sum", 2, self.group))
        whole: torch.Tensor = ops.wait_tensor(ops.all_reduce(part, "sum", self.group))
        return whole * 3


def exchanged(rank: int) -> tuple[list[list[float]], list[str]]:
    world = torch.distributed.group.WORLD
    assert world is not None
    run, silent = silenced(Exchange(world.group_name))
    found = run(torch.tensor([[1.0, 2.0], [3.0, 4.0]]) + rank)
    return found.tolist(), [op.target for op in silent.programs[0].starts]


@pytest.mark.gloo
def test_compute_alone_does_everything_but_communicate() -> None:
    targets = ["all_gather.start", "reduce_scatter.start", "all_reduce.start"]
    assert local_ranks(exchanged, 2) == [
        ([[9.0, 15.0], [21.0, 27.0]], targets),
        ([[15.0, 21.0], [27.0, 33.0]], targets),
    ]


def test_states_are_compared_parameter_by_parameter() -> None:
    one = [torch.tensor([1.0, 4.0]), torch.tensor([0.5])]
    assert apart(one, one) == 0
    assert apart([torch.tensor([2.0, 4.0]), torch.tensor([0.5])], one) == 0.25
    assert apart([torch.tensor([1.0, 4.0]), torch.tensor([1.0])], one) == 1


# What is printed


def case(weft_ms: float = 70.0, ratio: float | None = 1.0, kind: str = "fsdp") -> Case:
    rows = (
        Row(WRITTEN, Spread(110e3, 100e3, 120e3), 3e3, 0.0),
        Row(COMPILED, Spread(100e3, 95e3, 105e3), 3e3, 2e-7),
        Row(OVERLAP, Spread(80e3, 78e3, 82e3), 3e3, 2e-7),
        Row(WEFT, Spread(weft_ms * 1e3, (weft_ms - 1) * 1e3, (weft_ms + 1) * 1e3), 4e3, 2e-7),
    )
    parts = Part(20e3, 15e3), Part(40e3, 48e3)
    alone = Spread(60e3, 60e3, 60e3), Spread(63e3, 63e3, 63e3)
    return Case(kind, ratio, None if ratio is None else 50e6, *alone, parts, rows, {REORDER: "it is"}, 66e3, 1.1, 0.25)


def test_table() -> None:
    assert table(case()) == (
        "**fsdp**, 1×, over 50 Mbit/s: compute alone 60.0 ms (60.0 to 60.0), communication alone 63.0 ms (63.0 to "
        "63.0), 1.05× (forward 20 and 15 ms, backward 40 and 48 ms), so the floor is 68 ms; Weft predicts 66 ms; "
        "compute beside a collective takes 1.10 times as long; other processes had 25% of the cores\n"
        "\n"
        "|                            | step ms |  quartiles | ÷ torch.compile | ÷ larger part | ÷ floor | Gloo ms | "
        "apart |\n"
        "|----------------------------|--------:|-----------:|----------------:|--------------:|--------:|--------:|"
        "------:|\n"
        "| as written                 |     110 | 100 to 120 |            1.10 |          1.75 |    1.62 |       3 | "
        "    0 |\n"
        "| torch.compile              |     100 |  95 to 105 |            1.00 |          1.59 |    1.47 |       3 | "
        "2e-07 |\n"
        "| torch's overlap scheduling |      80 |   78 to 82 |            0.80 |          1.27 |    1.18 |       3 | "
        "2e-07 |\n"
        "| Weft                       |      70 |   69 to 71 |            0.70 |          1.11 |    1.03 |       4 | "
        "2e-07 |\n"
        "\n"
        "torch's reordering does not run: it is"
    )


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (case(), [(0.7, 0.75), (70 / 63, 1.15), (70 / 80, 1.05)]),
        (case(ratio=2.0), [(0.7, 0.85), (70 / 63, 1.15), (70 / 80, 1.05)]),
        (case(84.0), [(0.84, 0.75), (84 / 63, 1.15), (84 / 80, 1.05)]),
        (case(kind="tp"), [(70 / 80, 1.05)]),
        (case(ratio=4.0), []),
        (case(ratio=None), []),
    ],
)
def test_verdicts(told: Case, expected: list[tuple[float, float]]) -> None:
    found, limits = zip(*expected, strict=True) if expected else ((), ())
    assert [line.found for line in verdicts(told)] == pytest.approx(found)
    assert [line.limit for line in verdicts(told)] == [*limits]


def test_a_verdict_names_the_best_of_the_others() -> None:
    assert [line.what for line in verdicts(case())] == [
        "fsdp, 1×: Weft ÷ torch.compile",
        "fsdp, 1×: Weft ÷ larger part (floor 1.08)",
        "fsdp, 1×: Weft ÷ best other (torch's overlap scheduling)",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kinds", "tp,pp"], "'pp' is no kind; there are ddp, fsdp, tp"),
        (["--ways", "Weft,luck"], "'luck' is no way; there are as written, torch.compile, "),
        (["--ratios", "1,x"], "ratios are numbers from 0.01 to 100, separated by commas, not '1,x'"),
        (["--repetitions", "0"], "this is a number of times, at least 1, not '0'"),
    ],
)
def test_wrong_options_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        real.main(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_failure_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(task: Any) -> list[Case]:
        raise WeftError("2 ranks did not finish within 8 s")

    monkeypatch.setattr(real, "run", fails)
    with pytest.raises(SystemExit) as end:
        real.main([])
    assert end.value.code == "bench.real: 2 ranks did not finish within 8 s"
