"""The backend in one process, with ranks that are only made believe: options, caches, hooks, reports."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor
from torch._inductor import config
from torch.distributed._functional_collectives import all_gather_single
from torch.fx import GraphModule
from torch.testing._internal.distributed.fake_pg import FakeStore

import weft
from weft.run import Settings, plan_cache
from weft.run.hook import WeftPass

MACHINE = "gloo-cpu"
INSTALLED = (
    "post_grad_custom_post_pass",
    "_pre_fusion_custom_pass",
    "_post_fusion_custom_pass",
    "reorder_for_peak_memory",
)


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been compiled yet, by anybody."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()


def gathers(x: Tensor, y: Tensor) -> Tensor:
    """Two gathers and two products: nothing for which Inductor would have to call a compiler."""
    group = dist.group.WORLD
    assert group is not None
    return torch.mm(torch.mm(all_gather_single(x, 0, group), y), all_gather_single(y, 0, group).t())


def called(function: Any, rows: int = 64) -> Tensor:
    result: Tensor = function(torch.ones(rows, 64), torch.ones(64, 64))
    return result


def last() -> weft.Report:
    report = weft.last_report()
    assert report is not None
    return report


def test_the_backend_has_a_name() -> None:
    assert "weft" in torch._dynamo.list_backends()
    called(torch.compile(gathers, backend="weft", options={"machine": MACHINE, "mode": "eager"}))
    assert str(last()).startswith("weft: inference graph: 2 → ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"machin": MACHINE}, "Weft has no option 'machin'; did you mean machine?"),
        ({"mode": "fast"}, "mode must be 'inductor' or 'eager', not 'fast'"),
        ({"on_disagreement": "ignore"}, "on_disagreement must be 'warn' or 'error', not 'ignore'"),
        ({"agreement_timeout_s": 0}, "agreement_timeout_s must be seconds, more than 0, not 0"),
        ({"compute_estimator": "profile"}, "compute_estimator must be 'analytic' or 'benchmark', not 'profile'"),
        ({"collective_estimator": "benchmark"}, "collective_estimator must be 'analytic', not 'benchmark'"),
        ({"memory_limit": "much"}, "'much' is no amount of memory; write such as 70GB, 512MiB or 1000000"),
    ],
)
def test_options_are_checked_before_anything_is_compiled(options: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.OptionError) as caught:
        weft.compile(gathers, **options)
    assert str(caught.value) == message


def test_ops_are_timed_where_that_is_wanted() -> None:
    called(weft.compile(gathers, machine=MACHINE, mode="eager", compute_estimator="benchmark"))
    analytic = last().before.step_us
    called(weft.compile(gathers, machine=MACHINE, mode="eager"))
    assert last().before.step_us != analytic


# What Inductor keeps


def cached() -> bool:
    torch._dynamo.reset()
    called(weft.compile(gathers, machine=MACHINE))
    return last().cached


def test_a_graph_out_of_inductors_cache_brings_its_decision_along() -> None:
    assert not cached()
    planned = last()
    assert cached()
    assert (last().before, last().after, last().plan) == (planned.before, planned.after, planned.plan)
    assert str(last()).endswith("from the cache")


def test_another_option_is_another_graph() -> None:
    assert not cached()
    torch._dynamo.reset()
    called(weft.compile(gathers, machine=MACHINE, memory_limit="70GB"))
    assert not last().cached


def test_what_is_kept_depends_on_where_the_ranks_are() -> None:
    before = WeftPass(Settings(machine=MACHINE)).uuid()
    group = dist.new_group([0])
    assert WeftPass(Settings(machine=MACHINE)).uuid() != before
    dist.destroy_process_group(group)
    assert WeftPass(Settings(machine=MACHINE)).uuid() == before
    assert WeftPass(Settings(machine=MACHINE, compute_estimator="benchmark")).uuid() is None
    assert WeftPass(Settings(machine=MACHINE, custom_runtime_estimation=lambda what, given: 1.0)).uuid() is None


def test_groups_of_other_ranks_do_not_count() -> None:
    before = WeftPass(Settings(machine=MACHINE)).uuid()
    group = dist.new_group([1])
    assert group == dist.GroupMember.NON_GROUP_MEMBER
    assert WeftPass(Settings(machine=MACHINE)).uuid() == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weft_decision": 1, "launches": {"key": 1}}', "\0" * 40])
def test_a_damaged_plan_cache_costs_a_compilation(text: str) -> None:
    assert not cached()
    (path,) = plan_cache.plan_cache().glob("*.json")
    path.write_text(text)
    with pytest.warns(weft.WeftWarning, match="is damaged .* and the graph is compiled anew"):
        assert not cached()
    assert cached()


def test_a_decision_that_is_gone_is_made_again() -> None:
    assert not cached()
    (path,) = plan_cache.plan_cache().glob("*.json")
    path.unlink()
    assert not cached()
    assert cached()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small disk can only be made by root")
    (disk / "filling").write_bytes(b"x" * 4096)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_costs_the_cache(full_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "plan_cache", lambda: full_disk)
    with pytest.warns(weft.WeftWarning, match="cannot be written: No space left on device; the next start"):
        assert not cached()
    assert [path.name for path in full_disk.iterdir()] == ["filling"]


# Inside of somebody else's torch.compile


def test_enabled_puts_weft_into_inductor_for_a_while() -> None:
    before = {name: getattr(config, name) for name in ("post_grad_custom_post_pass", "reorder_for_peak_memory")}
    with weft.enabled(machine=MACHINE, passes="bucket"):
        called(torch.compile(gathers))
    assert (last().before.collectives, last().after.collectives) == (2, 1)
    assert {name: getattr(config, name) for name in before} == before


def test_install_puts_weft_into_inductor_for_good() -> None:
    with config.patch(dict.fromkeys(INSTALLED)):  # which brings back what is changed inside
        weft.install(machine=MACHINE, passes="bucket")
        called(torch.compile(gathers), rows=32)
        with pytest.raises(weft.OptionError, match="Weft is in Inductor already"):
            weft.install()
    assert (last().before.collectives, last().after.collectives) == (2, 1)
    assert config.post_grad_custom_post_pass is None


def test_passes_of_others_run_before_and_those_in_our_place_are_an_error() -> None:
    seen: list[str] = []
    with config.patch(post_grad_custom_post_pass=lambda graph: seen.append("theirs")), weft.enabled(machine=MACHINE):
        called(torch.compile(gathers))
    assert seen == ["theirs"]
    with config.patch(_post_fusion_custom_pass=lambda nodes: nodes), pytest.raises(weft.OptionError, match="room for"):
        weft.install(machine=MACHINE)
    with pytest.raises(weft.OptionError, match=r"for mode=\"eager\" use"):
        weft.install(mode="eager")


# What there is to be seen


def test_a_summary_is_told_and_remarks_to_those_who_ask(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="weft"):
        called(weft.compile(gathers, machine=MACHINE, mode="eager", passes="bucket"))
    summary, *remarks = [record.getMessage() for record in caplog.records if record.name == "weft"]
    assert summary == str(last())
    assert remarks == [str(remark) for remark in last().remarks]
    assert len(remarks) == 1


SCRIPT = """
import torch, weft
from tests.run.test_backend import FakeStore, called, dist, gathers
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
called(weft.compile(gathers, machine="gloo-cpu", mode="eager", passes="bucket"))
"""


def test_torch_logs_and_the_structured_trace_have_it_all(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    env = {**os.environ, "TORCH_LOGS": "+weft", "TORCH_TRACE": str(tmp_path / "trace"), "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "weft: inference graph: 2 → 1 collective, exposed " in done.stderr
    assert "bucket: done: %" in done.stderr
    (log,) = (tmp_path / "trace").glob("*.log")
    found = [line for line in log.read_text().splitlines() if '"weft_inference_' in line]
    names = [json.loads(line[line.index("{") :])["artifact"]["name"] for line in found]
    assert names == [f"weft_inference_{name}" for name in ("before", "after", "plan", "remarks")]


# What is left behind


def test_graphs_are_freed() -> None:
    alive: list[weakref.ref[GraphModule]] = []

    def watched(module: GraphModule, inputs: Any) -> Any:
        from weft.run.backend import backend

        alive.append(weakref.ref(module))
        return backend(module, inputs, options={"machine": MACHINE, "mode": "eager"})

    for rows in range(8, 48, 2):
        torch._dynamo.reset()
        called(torch.compile(gathers, backend=watched), rows=rows)
    torch._dynamo.reset()
    gc.collect()
    assert len(alive) == 20
    assert [one for one in alive if one() is not None] == []
