"""`bench.quality` on a workload of a few hundred ops: its arithmetic, its table, its JSON and its picture."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch.utils._runtime_estimation as runtime_estimation
from torch._inductor import comm_analysis
from torch._inductor.fx_passes import overlap_scheduling

import weft
from bench import quality
from bench.capture import captured_on
from bench.cases import Case, Figures, Row, from_json, summary, table, to_json
from bench.picture import draw
from bench.quality import LIMITS, PIPELINES, WAYS, Problem, cases, limit_bytes, measured, sound
from bench.torch_pass import torch_pass
from bench.workloads import WORKLOADS
from weft.cli import llama
from weft.cost import Machine
from weft.ir import Program
from weft.sim import simulate

# All in one worker: what they look at is made once.
pytestmark = pytest.mark.xdist_group("quality")

TINY = replace(WORKLOADS["llama3_8b_fsdp"], mesh=(("data", 4),), config=llama.llama_tiny())


@pytest.fixture(scope="module")
def found() -> list[Case]:
    return list(cases(TINY, ["h100-ib400"], LIMITS))


@pytest.fixture
def program() -> Iterator[Program]:
    with weft.planning(dict(TINY.mesh)) as mesh:
        yield captured_on(mesh, TINY)


def test_every_limit_has_every_row(found: list[Case]) -> None:
    assert [case.limit for case in found] == ["none", "+5%"]
    for case in found:
        assert [row.name for row in case.rows] == ["original", "torch", "torch, buckets", *PIPELINES]
        assert (case.workload, case.layers, case.machine) == ("llama3_8b_fsdp", 2, "h100-ib400")
        assert all((row.figures is None) == bool(row.error) for row in case.rows)
        assert sound(case)


def test_steps_add_up_and_respect_the_bound(found: list[Case]) -> None:
    for case in found:
        assert case.rows[0].figures is not None
        for row in case.rows:
            assert row.figures is not None, row.error
            assert case.over_bound(row.figures) >= 1
            assert row.figures.step_us == pytest.approx(row.figures.compute_us + row.figures.exposed_us)
            assert row.figures.pass_s >= 0
            if row.name == "torch":
                assert row.figures.collectives == case.rows[0].figures.collectives
            if row.name == "torch, buckets":
                assert row.figures.collectives < case.rows[0].figures.collectives


def test_json_keeps_everything(found: list[Case]) -> None:
    assert from_json(to_json(found)) == found
    failed = replace(found[0], rows=(Row("torch", None, "ValueError: no"),))
    assert from_json(to_json([failed])) == [failed]


def made_up(step_us: float = 150_000.0, peak_bytes: int = 1_040_000_000) -> Case:
    rows = (
        Row("original", Figures(200_000.0, 90_000.0, 110_000.0, 1200, 1_000_000_000, 0.0)),
        Row("torch", None, "AssertionError: cyclic extra deps"),
        Row("weft", Figures(step_us, 90_000.0, step_us - 90_000.0, 12, peak_bytes, 0.25)),
    )
    return Case("a model", 2, "a machine", "+5%", 1_050_000_000, 100_000.0, "compute", rows)


def test_table() -> None:
    assert table(made_up()) == (
        "**a model** (2 layers) on a machine, at most 1.05 GB (+5%); bound 100.00 ms by compute\n"
        "\n"
        "|          | step ms | exposed ms | collectives | peak GB | pass s | ÷ bound |\n"
        "|----------|--------:|-----------:|------------:|--------:|-------:|--------:|\n"
        "| original |  200.00 |     110.00 |       1,200 |    1.00 |   0.00 |   2.000 |\n"
        "| torch    |  failed |            |             |         |        |         |\n"
        "| weft     |  150.00 |      60.00 |          12 |    1.04 |   0.25 |   1.500 |\n"
        "\n"
        "torch: AssertionError: cyclic extra deps"
    )


def test_a_step_over_the_limit_is_marked_and_unsound() -> None:
    case = made_up(peak_bytes=1_060_000_000)
    assert "| 1.06 OVER |" in table(case)
    assert not sound(case)


def test_a_peak_that_is_counted_otherwise_is_marked_and_unsound() -> None:
    case = made_up()
    (*others, weft) = case.rows
    assert weft.figures is not None
    for counted, told in ((1_045_000_000, "1.04 COUNTED"), (1_060_000_000, "1.04 OVER COUNTED")):
        other = replace(case, rows=(*others, replace(weft, figures=replace(weft.figures, counted_bytes=counted))))
        assert f"| {told} {counted:,} |" in table(other)
        assert not sound(other)
        assert "as an allocator would: 0 of 1 agree" in summary([other])


def test_a_step_below_the_bound_is_marked_and_unsound() -> None:
    case = made_up(step_us=99_000.0)
    assert "0.990 BELOW" in table(case)
    assert not sound(case)
    assert sound(made_up())


def test_a_step_that_does_less_has_its_own_bound() -> None:
    case = made_up(step_us=99_000.0)
    (*others, weft) = case.rows
    assert weft.figures is not None
    less = replace(case, rows=(*others, replace(weft, figures=replace(weft.figures, bound_us=90_000.0))))
    assert "1.100 |" in table(less)
    assert sound(less)


def test_weft_that_fails_is_unsound_and_torch_is_not() -> None:
    case = made_up()
    assert not sound(replace(case, rows=(*case.rows, Row("weft", None, "PassError: no"))))


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_picture(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"picture.{ending}"
    draw([made_up(), replace(made_up(), limit="none", limit_bytes=None)], path)
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[ending])


def test_a_limit_is_relative_to_the_peak() -> None:
    assert limit_bytes("none", 1000) is None
    assert limit_bytes("+5%", 1000) == 1050
    assert limit_bytes("+0.5%", 1000) == 1005
    with pytest.raises(ValueError, match='a memory limit is "none" or such as "\\+5%", not \'5\''):
        limit_bytes("5", 1000)


def test_a_way_that_raises_is_a_row_with_its_first_line() -> None:
    def way(problem: Problem) -> NoReturn:
        raise AssertionError("cyclic extra deps\nmany more lines")

    machine = Machine.load("h100-ib400")
    problem = Problem(simulate(weft.parse("weft 1\n\nreturn ()\n"), machine), machine, None)
    assert measured(problem, "torch", way) == Row("torch", None, "AssertionError: cyclic extra deps")


def test_torch_works_on_a_copy_and_is_left_as_it_was(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> list[object]:
        names = ("get_gpu_dram_gbps", "get_device_tflops")
        return [comm_analysis.get_gpu_type, *(getattr(runtime_estimation, name) for name in names)]

    machine = Machine.load("h100-ib400")
    before, nodes = asked(), [node.name for node in program.source.graph.nodes]
    made, _ = torch_pass(program, machine, bucketing=True, memory_increase=None)
    assert len(made.starts) < len(program.starts)
    assert [node.name for node in program.source.graph.nodes] == nodes

    def fails(*args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError("no")

    monkeypatch.setattr(overlap_scheduling, "schedule_overlap_bucketing", fails)
    with pytest.raises(RuntimeError, match="no"):
        torch_pass(program, machine, bucketing=True, memory_increase=None)
    assert asked() == before


def test_torch_is_told_the_times_of_the_machine(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine.load("h100-ib400")
    start = program.starts[0]
    assert start.comm is not None
    told: list[float] = []

    def asks(graph: object, *, custom_runtime_estimation: object, **options: object) -> object:
        assert callable(custom_runtime_estimation)
        node = next(node for node in graph.graph.nodes if node.name == start.name)  # type: ignore[attr-defined]
        told.extend(custom_runtime_estimation(node, size) for size in (None, 0, 2**20))
        return graph

    monkeypatch.setattr(overlap_scheduling, "schedule_overlap_bucketing", asks)
    torch_pass(program, machine, bucketing=False, memory_increase=0)
    sizes = (start.out[0].nbytes, 1, 2**20)
    assert told == [machine.collective_us(start.comm, size) / 1e3 for size in sizes]


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(quality, "WORKLOADS", {TINY.name: TINY})
    monkeypatch.setattr(quality, "WAYS", {"weft": WAYS["weft"]})
    written, drawn = tmp_path / "out.json", tmp_path / "out.png"
    words = ["quality", "--workloads", TINY.name, "--machines", "h100-ib400", "--layers", "1", "--limits", "none"]
    words += ["--small", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--json", str(written), "--picture", str(drawn)])
    with pytest.raises(SystemExit) as end:
        quality.main()
    assert end.value.code == 0
    (case,) = from_json(written.read_text())
    assert case.layers == 1
    near = "2 of 2 small programs are within 2% of CP-SAT's optimum, at worst 1.000"
    assert capsys.readouterr().out == table(case) + "\n\n" + summary([case]) + "\n" + near + "\n"
    assert drawn.exists()


def test_the_summary_says_where_weft_is_behind(found: list[Case]) -> None:
    case = found[1]
    step = {row.name: row.figures.step_us for row in case.rows if row.figures is not None}
    assert "weft is behind no other row in any case" in summary([case])
    slower = [replace(row, figures=replace(row.figures, step_us=2 * step["torch"])) if row.name == "weft" else row
              for row in case.rows if row.figures is not None]  # fmt: skip
    told = summary([replace(case, rows=tuple(slower))]).splitlines()
    assert "llama3_8b_fsdp on h100-ib400, limit +5%: weft is 100.00% behind torch" in told
    assert (
        told[0] == f"original: step ÷ bound {step['original'] / case.bound_us:.3f} over 1 of 1 cases, 0 over the limit"
    )


def test_only_the_rows_that_are_wanted_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(problem: Problem) -> NoReturn:
        raise ValueError("no")

    monkeypatch.setattr(quality, "WAYS", {"torch": fails, "weft": fails})
    (case,) = cases(TINY, ["h100-ib400"], LIMITS[:1], rows=["weft"])
    assert [row.name for row in case.rows] == ["original", "weft"]


def test_torchs_rows_are_taken_from_an_earlier_run(found: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(problem: Problem) -> NoReturn:
        raise ValueError("not again")

    monkeypatch.setattr(quality, "WAYS", {"torch": fails, "torch, buckets": fails})
    again = list(cases(TINY, ["h100-ib400"], LIMITS, known=found))
    assert [case.rows[:3] for case in again] == [case.rows[:3] for case in found]
    cheaper = [replace(case, bound_us=case.bound_us / 2) for case in found]  # other prices: it is another case
    again = list(cases(TINY, ["h100-ib400"], LIMITS[:1], known=cheaper))
    assert [row.error for row in again[0].rows[1:]] == ["ValueError: not again"] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workloads", "gpt5"], "'gpt5' is no workload; there are gpt2_xl_ddp"),
        (["--rows", "wft"], "invalid choice: 'wft' (choose from 'torch', 'torch, buckets', 'weft', 'weft, safe')"),
        (["--limits", "none,5"], 'a memory limit is "none" or such as "+5%", not \'5\''),
    ],
)
def test_wrong_options_are_refused(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quality", *words])
    with pytest.raises(SystemExit) as end:
        quality.main()
    assert end.value.code == 2
    assert said in capsys.readouterr().err
