"""`bench.captured` and its hosts: a tiny case from end to end, what is printed, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
import torch.distributed as dist

import weft
from bench import captured
from bench.captured import Task, pipelines
from bench.captured_cases import Case, Row, table
from bench.captured_steps import SIZES, Size
from weft.cli.llama import llama_tiny
from weft.errors import WeftError
from weft.run import hosts, local_ranks, steps
from weft.run.alone import compute_alone
from weft.run.hosts import DEVICE, Hosts, at_once, why_no_link
from weft.run.measuring import Spread
from weft.run.samples import Effort
from weft.run.steps import Step

TINY = Size(llama_tiny(), samples=2)
HASTY = Effort(rounds=1, sample_s=1e-4, growth=64, longest_s=1e-4)

linked = pytest.mark.skipif(why_no_link() is not None, reason=f"no link with a rate: {why_no_link()}")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """`bench.captured` with tiny steps; the list is filled with the cases that a run finds."""
    found: list[Case] = []
    run = captured.run

    def noted(task: Task) -> list[Case]:
        found.extend(run(task))
        return found

    monkeypatch.setattr(captured, "SIZES", dict.fromkeys(SIZES, TINY))
    monkeypatch.setattr(captured, "EFFORT", HASTY)
    monkeypatch.setattr(captured, "run", noted)
    return found


@linked
@pytest.mark.gloo
def test_tiny_steps_over_a_link(tiny: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "captured.json"
    captured.main(["--steps", "tp", "--ratios", "2", "--also", "sink_waits", "--repetitions", "1", "--json", str(path)])
    assert [(case.step, case.ratio) for case in tiny] == [("tp", 2.0)]
    for case in tiny:
        check(case, "sink_waits")
        assert case.bits_per_s is not None
    printed = capsys.readouterr()
    assert printed.out.endswith("\n\n".join(map(table, tiny)) + "\n")
    assert json.loads(path.read_text()) == json.loads(json.dumps([asdict(case) for case in tiny]))


def check(case: Case, *also: str) -> None:
    assert [row.name for row in case.rows] == ["as written", *pipelines(), *also]
    assert case.rows[0].apart == 0
    assert all(0 <= row.apart <= captured.TOLERANCE for row in case.rows)
    assert all(0 < one.low <= one.median <= one.high for one in (case.compute, *(row.took for row in case.rows)))
    assert case.communication.median > 0


# Hosts


def sent(rank: int, place: Hosts) -> tuple[str, list[str], set[int], float]:
    """The namespace, devices and cores of a rank, and the seconds that a megabyte takes at 80 Mbit/s."""
    place.set_rate(80e6)
    devices = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    names = [device["ifname"] for device in devices]
    dist.barrier()  # the link is gone with the first of them that ends
    begin = perf_counter()
    dist.all_gather(list(torch.empty(2, 2**18)), torch.ones(2**18))
    seconds = perf_counter() - begin
    return os.readlink("/proc/self/ns/net"), names, os.sched_getaffinity(0), seconds


@linked
@pytest.mark.gloo
def test_ranks_have_hosts_and_a_link_that_are_gone_afterwards(tmp_path: Path) -> None:
    place = Hosts(tmp_path, limited=True)
    found = local_ranks(sent, 2, place, before=place.enter)
    namespaces = {namespace for namespace, *_ in found}
    assert len(namespaces | {os.readlink("/proc/self/ns/net")}) == 3
    for _, devices, cores, _ in found:
        assert DEVICE in devices
        assert len(cores) == 1
    # The first to begin waits for all that the other sends; to that one, some has been sent when it begins late.
    assert max(seconds for *_, seconds in found) >= (2**20 - 2 * at_once(80e6)) * 8 / 80e6
    assert not namespaces & in_use()
    assert DEVICE not in os.listdir("/sys/class/net")


@linked
@pytest.mark.gloo
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 1), (signal.SIGKILL, -9)])
def test_nothing_is_left_when_it_is_ended(how: signal.Signals, code: int) -> None:
    words = [sys.executable, "-m", "bench.captured", "--nice", "1"]
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=_interruptible
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "tp: capturing the step\n"
        ranks = children(process.pid)
        namespaces = {os.readlink(f"/proc/{rank}/ns/net") for rank in ranks} - {os.readlink("/proc/self/ns/net")}
        assert len(namespaces) == 2
        process.send_signal(how)
        said = process.stderr.read()  # until the ranks, who have it too, have ended
        assert process.wait() == code
    if how == signal.SIGINT:
        assert said.endswith("bench.captured: interrupted; the ranks, their hosts and the link are gone\n")
    assert not namespaces & in_use()


def _interruptible() -> None:
    """Whoever runs tests in the background may have told its processes not to listen to SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def in_use() -> set[str]:
    """The network namespaces that any process is in. Their numbers are used again, by tests that run beside this one:
    what these began does not count."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            elders = ancestors(int(process.name))
            if os.getppid() not in elders or os.getpid() in elders:
                found.add(os.readlink(process / "ns/net"))
        except OSError:  # it has ended
            continue
    return found


def ancestors(process: int) -> list[int]:
    """A process, its parent, and so on."""
    found = [process]
    while found[-1] > 1:
        _, behind_name = Path(f"/proc/{found[-1]}/stat").read_text().rsplit(")", 1)
        found.append(int(behind_name.split()[1]))
    return found


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    assert why_no_link() == "`tc` is not installed"
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert why_no_link() == "network namespaces need root"


def test_a_command_that_fails_is_named() -> None:
    with pytest.raises(WeftError, match=r"^`ls --nonsense` failed: .*nonsense"):
        hosts._run("ls", "--nonsense")


# What is printed, and what is measured


def test_table() -> None:
    rows = (
        Row("as written", Spread(8e4, 7e4, 9e4), 9.9e4, 10, 0.0),
        Row("scheduled", Spread(6e4, 5.5e4, 6.6e4), 5e4, 9, 1.2e-7),
    )
    case = Case("tp", 0.5, 250e6, Spread(5e4, 4e4, 6e4), Spread(2.5e4, 2.4e4, 2.6e4), rows, 1.2, 0.25)
    assert table(case) == (
        "**tp**, 0.5×, over 250 Mbit/s: compute alone 50.0 ms (40.0 to 60.0), communication alone 25.0 ms "
        "(24.0 to 26.0), 0.50×; compute beside a collective takes 1.20 times as long; other processes had 25% of the "
        "cores\n"
        "\n"
        "|            | step ms |    quartiles | ÷ as written | ÷ larger part | predicted ms | collectives | apart |\n"
        "|------------|--------:|-------------:|-------------:|--------------:|-------------:|------------:|------:|\n"
        "| as written |    80.0 | 70.0 to 90.0 |         1.00 |          1.60 |         99.0 |          10 |     0 |\n"
        "| scheduled  |    60.0 | 55.0 to 66.0 |         0.75 |          1.20 |         50.0 |           9 | 1e-07 |"
    )


def test_spreads() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)


def test_the_pipelines_are_the_default_without_and_with_micro_pipelines() -> None:
    assert pipelines() == {
        "scheduled": "dedupe,gather_once,put_off,bucket_auto,schedule",
        "micro-pipelined": "dedupe,gather_once,put_off,bucket_auto,halve,micro_pipeline,schedule",
    }


@pytest.mark.parametrize("wrong", [4.001, float("nan")])
def test_results_that_differ_are_refused(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "from_all", lambda value: [value, 0.0])
    written = [torch.tensor([1.0, 4.0]), torch.zeros(0)]
    near, far = ([torch.tensor([1.0, other]), torch.zeros(0)] for other in (4.0 + 2**-20, wrong))
    assert captured._apart("near", lambda: written, lambda: near) == 2**-22
    with pytest.raises(WeftError, match=r"^far: a result is .* of its largest number away from the step as written$"):
        captured._apart("far", lambda: written, lambda: far)


def test_compute_alone_does_everything_but_communicate() -> None:
    lines = """weft 1
group "dp" = 0..1

%x: f32[2,2] = input()
%ag: f32[4,2] = all_gather.start(%x) over "dp"
%full: f32[4,2] = wait(%ag)
%rs: f32[2,2] = reduce_scatter.start(%full) sum over "dp"
%own: f32[2,2] = wait(%rs)
%ar: f32[2,2] = all_reduce.start(%own) sum over "dp"
%all: f32[2,2] = wait(%ar)
return %full, %own, %all
"""
    given = torch.arange(4.0).view(2, 2)
    full, own, everything = compute_alone(Step(weft.parse(lines), (given,)))()
    assert torch.equal(full, torch.cat([given, given]))
    assert torch.equal(own, given)
    assert torch.equal(everything, given)


def test_compute_alone_refuses_what_it_does_not_know() -> None:
    program = weft.parse(
        'weft 1\ngroup "dp" = 0..1\n\n%x: f32[2] = input()\n'
        '%b: f32[2] = broadcast.start(%x, 0) over "dp"\n%y: f32[2] = wait(%b)\nreturn %y\n'
    )
    with pytest.raises(WeftError, match=r"^%b: nothing stands for _c10d_functional.broadcast.default when compute is"):
        compute_alone(Step(program, (torch.ones(2),)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "tp,pp"], "'pp' is no step; there are tp, fsdp, ddp"),
        (["--ratios", "1,x"], "ratios are numbers from 0.01 to 100, separated by commas, not '1,x'"),
        (["--ratios", "0"], "ratios are numbers from 0.01 to 100, separated by commas, not '0'"),
        (["--also", "nonsense"], "expected a pass (sink_waits, "),
        (["--repetitions", "0"], "this is a number of times, at least 1, not '0'"),
    ],
)
def test_wrong_options_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        captured.main(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_failure_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(task: Any) -> list[Case]:
        raise WeftError("2 ranks did not finish within 8 s")

    monkeypatch.setattr(captured, "run", fails)
    with pytest.raises(SystemExit) as end:
        captured.main([])
    assert end.value.code == "bench.captured: 2 ranks did not finish within 8 s"
