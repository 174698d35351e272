"""`bench.pipeline` on a tensor-parallel Llama of one layer: what is found, what waits, its table and its command."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from bench import pipeline, pipeline_patterns
from bench.pipeline import PIPELINES, Figures, Gain, Outcome, longer_us, outcome, sound, table
from bench.pipeline_patterns import Pattern, Patterns, patterns, place_of
from bench.pipeline_torch import Pipelined
from bench.workloads import WORKLOADS, Workload
from weft.cost import Machine
from weft.sim import simulate

# All in one worker: what they look at is made once.
pytestmark = pytest.mark.xdist_group("pipeline")

ONE = WORKLOADS["llama3_8b_tp8_sp"].with_layers(1)
MACHINE = Machine.load("h100-ib400")

MLP = """weft 1
group tp = 0..7

%x: bf16[1024,8192] = input()
%up: bf16[8192,3584] = input()
%down: bf16[3584,8192] = input()
%gathered: bf16[8192,8192] = all_gather.start(%x) over tp
%whole: bf16[8192,8192] = wait(%gathered)
%h: bf16[8192,3584] = aten.mm.default(%whole, %up)
%a: bf16[8192,3584] = aten.relu.default(%h)
%y: bf16[8192,8192] = aten.mm.default(%a, %down)
%scattered: bf16[1024,8192] = reduce_scatter.start(%y) sum over tp
%own: bf16[1024,8192] = wait(%scattered)
return %own
"""


@pytest.fixture(scope="module")
def found() -> Outcome:
    return outcome(ONE, [MACHINE.name])


def test_patterns_of_a_layer(found: Outcome) -> None:
    assert found.patterns == Patterns(
        (
            Pattern("all-gather → matmul", "forward", 3, 3, 3, 0),
            Pattern("all-gather → matmul", "backward", 2, 2, 2, 0),
            Pattern("matmul → reduce-scatter", "forward", 2, 2, 2, 2),
            Pattern("matmul → reduce-scatter", "backward", 3, 3, 3, 1),
            Pattern("matmul → all-gather", "forward", 1, 1, 0, 0),
            Pattern("no matmul next to it", "forward", 1, 0, 0, 0),
            Pattern("no matmul next to it", "backward", 4, 1, 0, 0),
        )
    )


def test_every_pipeline_has_a_row_that_adds_up(found: Outcome) -> None:
    assert (found.workload, found.layers, found.samples) == ("llama3_8b_tp8_sp", 1, 1)
    (gain,) = found.gains
    assert list(gain.rows) == ["original", "scheduled", "in chunks", "fused", "default"]
    assert gain.machine == "h100-ib400"
    for name, row in gain.rows.items():
        assert row.step_us >= gain.bound_us
        assert (row.inside_us > 0) == (row.fused > 0) == (row.longer_us != 0)
        assert row.fused == 0 or name in ("fused", "default")
    assert sound(found)


def test_what_matmuls_take_longer_is_what_they_take_beyond_those_of_the_original() -> None:
    original = simulate(weft.parse(MLP), MACHINE)
    fused = weft.optimize(original.program, MACHINE, passes="micro_pipeline{lowering=fused}").after
    assert not fused.program.starts
    assert sum(op.inside is not None for op in fused.program.ops) == 2
    # Nothing else is different: the rest of both is one relu.
    assert longer_us(fused, original) == pytest.approx(fused.step_us - original.compute_us)
    assert longer_us(original, original) == 0


@pytest.mark.parametrize(
    ("was", "now", "start", "place"),
    [
        ("", "", "gathered", "all-gather → matmul"),
        ("", "", "scattered", "matmul → reduce-scatter"),
        ("aten.mm.default(%whole, %up)", "aten.mm.default(%up, %whole)", "gathered", "all-gather → matmul"),
        ("aten.relu.default(%h)", "aten.add.Tensor(%h, %h)", "scattered", "matmul → reduce-scatter"),
        ("aten.mm.default(%a, %down)", "aten.add.Tensor(%h, %h)", "scattered", "matmul → reduce-scatter"),
        ("aten.mm.default(%a, %down)", "aten.cumsum.default(%h, 0)", "scattered", "no matmul next to it"),
        ("aten.mm.default(%whole, %up)", "aten.relu.default(%whole)", "gathered", "no matmul next to it"),
        ("all_gather.start(%x)", "all_reduce.start(%x) sum", "gathered", "no matmul next to it"),
        ("reduce_scatter.start(%y) sum", "all_gather.start(%y)", "scattered", "matmul → all-gather"),
    ],
)
def test_where_a_collective_stands(was: str, now: str, start: str, place: str) -> None:
    assert was in MLP
    program = weft.parse(MLP.replace(was, now) if was else MLP)
    assert place_of(program, program[start]) == place


def made_up(step_us: float = 135_000.0) -> Outcome:
    plain = Figures(150_000.0, 120_000.0, 40_000.0, 0.0, 0.0, 262, 0, 25_860_000_000, 1.5)
    rows = {
        "original": replace(plain, step_us=170_000.0, exposed_us=60_000.0, collectives=1326, pass_s=0.0),
        "scheduled": plain,
        "in chunks": plain,
        "fused": replace(
            plain,
            step_us=135_000.0,
            exposed_us=10_000.0,
            bound_us=125_000.0,
            inside_us=5_000.0,
            longer_us=20_000.0,
            fused=161,
        ),
    }
    rows["default"] = replace(rows["fused"], step_us=step_us)
    gain = Gain("a machine", 120_000.0, "compute", rows, ("in chunks: micro_pipeline is left out: no",))
    gathers = Pattern("all-gather → matmul", "forward", 65, 64, 63, 0)
    others = Pattern("no matmul next to it", "backward", 9, 1, 0, 0)
    return Outcome("a model", 1, 2, Patterns((gathers, others)), (gain,))


TABLE = """**a model** (1 layer, 2 samples a rank)

|                                | collectives | Weft, in chunks | Weft, fused | torch, fused |
|--------------------------------|------------:|----------------:|------------:|-------------:|
| all-gather → matmul, forward   |          65 |              64 |          63 |            0 |
| no matmul next to it, backward |           9 |               1 |           0 |            0 |

Weft cuts 64 of 65 collectives next to a matmul in the forward and 0 of 0 in the backward
Weft fuses 63 of 65 collectives next to a matmul in the forward and 0 of 0 in the backward
torch fuses 0 of 65 collectives next to a matmul in the forward and 0 of 0 in the backward

**a model** on a machine; bound 120.00 ms by compute

|           | step ms | exposed ms | inside ms | longer ms | ÷ bound | ÷ own | collectives | fused | peak GB | pass s |
|-----------|--------:|-----------:|----------:|----------:|--------:|------:|------------:|------:|--------:|-------:|
| original  |  170.00 |      60.00 |      0.00 |      0.00 |   1.417 | 1.417 |       1,326 |     0 |   25.86 |   0.00 |
| scheduled |  150.00 |      40.00 |      0.00 |      0.00 |   1.250 | 1.250 |         262 |     0 |   25.86 |   1.50 |
| in chunks |  150.00 |      40.00 |      0.00 |      0.00 |   1.250 | 1.250 |         262 |     0 |   25.86 |   1.50 |
| fused     |  135.00 |      10.00 |      5.00 |     20.00 |   1.125 | 1.080 |         262 |   161 |   25.86 |   1.50 |
| default   |  135.00 |      10.00 |      5.00 |     20.00 |   1.125 | 1.080 |         262 |   161 |   25.86 |   1.50 |

in chunks: against scheduled, the step changes by +0.0%, exposed by +0.0%, exposed and inside by +0.0%
fused: against scheduled, the step changes by -10.0%, exposed by -75.0%, exposed and inside by -62.5%
default: against scheduled, the step changes by -10.0%, exposed by -75.0%, exposed and inside by -62.5%
in chunks: micro_pipeline is left out: no"""


def test_table() -> None:
    assert table(made_up()) == TABLE


def test_a_step_below_the_bound_is_marked_and_unsound() -> None:
    assert sound(made_up())
    assert not sound(made_up(step_us=119_000.0))
    assert "0.992 BELOW" in table(made_up(step_us=119_000.0))


def test_a_default_that_is_longer_than_without_is_unsound() -> None:
    assert not sound(made_up(step_us=151_000.0))


def test_what_torch_raises_stands_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Pipelined("inductor", 0, 7, 0, 6, 0.0, "ValueError: no such pattern")
    monkeypatch.setattr(pipeline_patterns, "torch_pipeline", lambda program, group: failed)
    monkeypatch.setattr(pipeline_patterns, "_first_backward", len)
    program = weft.parse(MLP)
    seen = patterns(program, program, "tp", MACHINE)
    assert seen == Patterns(
        (
            Pattern("all-gather → matmul", "forward", 1, 1, 1, None),
            Pattern("matmul → reduce-scatter", "forward", 1, 1, 1, None),
        ),
        "ValueError: no such pattern",
    )
    told = table(replace(made_up(), patterns=seen))
    assert "| matmul → reduce-scatter, forward |           1 |               1 |           1 |       failed |" in told
    assert "torch: ValueError: no such pattern" in told.splitlines()


def test_passes_that_were_left_out_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = simulate(weft.parse(MLP), MACHINE)
    monkeypatch.setattr(pipeline, "PIPELINES", {"worse": "micro_pipeline{always=true, chunks=128}"})
    (note,) = pipeline.gain(original, MACHINE, lambda line: None).notes
    assert note.startswith("worse: micro_pipeline is left out: the step would take ")


@pytest.mark.parametrize(("step_us", "code"), [(135_000.0, 0), (119_000.0, 1)])
def test_command(
    step_us: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def answer(workload: object, machines: list[str], say: object) -> Outcome:
        asked.append((workload, machines))
        return made_up(step_us=step_us)

    monkeypatch.setattr(pipeline, "outcome", answer)
    written = tmp_path / "out.json"
    words = ["--workloads", ONE.name, "--machines", "a,b", "--layers", "1", "--samples", "2", "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["pipeline", *words])
    with pytest.raises(SystemExit) as end:
        pipeline.main()
    assert end.value.code == code
    assert asked == [(replace(ONE, micro_batch=2), ["a", "b"])]
    (one,) = json.loads(written.read_text())
    assert list(one["gains"][0]["rows"]) == ["original", *PIPELINES]
    assert capsys.readouterr().out == table(made_up(step_us=step_us)) + "\n\n"


def test_without_options_both_workloads_are_two_layers_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Workload] = []

    def answer(workload: Workload, machines: list[str], say: object) -> Outcome:
        asked.append(workload)
        return made_up()

    monkeypatch.setattr(pipeline, "outcome", answer)
    for words in ([], ["--layers", "full"]):
        monkeypatch.setattr(sys, "argv", ["pipeline", *words])
        with pytest.raises(SystemExit):
            pipeline.main()
    depths = [(one.name, one.config.layers, one.micro_batch) for one in asked]
    assert depths == [
        ("llama3_70b_fsdp_tp8", 2, 1),
        ("llama3_8b_tp8_sp", 2, 1),
        ("llama3_70b_fsdp_tp8", 80, 1),
        ("llama3_8b_tp8_sp", 32, 1),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workloads", "gpt5"], "'gpt5' is no workload; there are gpt2_xl_ddp"),
        (["--workloads", "gpt2_xl_ddp"], "gpt2_xl_ddp is not tensor parallel; there are llama3_70b_fsdp_tp8, llama3"),
        (["--layers", "all"], "layers are a number or \"full\", not 'all'"),
        (["--layers", "0"], "layers are a number or \"full\", not '0'"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline", *words])
    with pytest.raises(SystemExit) as end:
        pipeline.main()
    assert end.value.code == 2
    assert said in capsys.readouterr().err
