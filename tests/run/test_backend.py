"""The backend in one process, with ranks that are only made believe: options, caches, hooks, reports."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor import config
from torch._inductor.custom_graph_pass import get_custom_graph_passes
from torch._inductor.exc import InductorError
from torch.distributed._functional_collectives import all_gather_single, all_gather_single_autograd
from torch.fx import Graph, GraphModule
from torch.testing._internal.distributed.fake_pg import FakeStore

import weft
from weft.passes import PASSES, Plan, Remark, pass_text
from weft.passes.base import Context, fingerprint
from weft.run import Settings, backend, decisions, plan_cache
from weft.run.agreement import Verdict
from weft.run.claims import Launches
from weft.run.consent import Follow
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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weft_decision": 2, "launches": {"key": 1}}', "\0" * 40])
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


def growing(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """On a CPU, the sum over a size that changes has another kernel from some size on, and a guard that says so."""
    group = dist.group.WORLD
    assert group is not None
    product = torch.mm(x, all_gather_single(v, 0, group))
    return torch.mm(product, all_gather_single(w, 0, group)), x.sum()


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The lines of all claims, which everybody agrees to."""
    found: list[tuple[str, ...]] = []

    def consent(launches: Launches, settings: Settings, follow: Follow) -> Verdict:
        found.append(launches.lines)
        return Verdict(agreed=True)

    monkeypatch.setattr(backend, "consent", consent)
    return found


def test_graphs_that_inductor_keeps_under_one_key_have_a_decision_each(claimed: list[tuple[str, ...]]) -> None:
    for rows in (16, 8192, 16):
        torch._dynamo.reset()
        x, v, w = torch.ones(rows, 256), torch.ones(128, 256), torch.ones(128, 256)
        torch._dynamo.mark_dynamic(x, 0)
        weft.compile(growing, machine=MACHINE, passes="bucket_auto{mode=default},schedule")(x, v, w)
    assert last().cached
    assert [len(lines) for lines in claimed] == [1, 2, 1]


@pytest.mark.parametrize("label", ["", "second"])
def test_what_is_claimed_is_kept_under_its_label(label: str) -> None:
    assert not cached()
    torch._dynamo.reset()
    called(weft.compile(gathers, machine=MACHINE, label=label))
    assert last().cached == (label == "")


@dataclass(frozen=True)
class Mine:
    """A pass that is not Weft's."""

    name: ClassVar[str] = "mine"
    exact: ClassVar[bool] = True
    reorders: ClassVar[bool] = False

    def plan(self, program: weft.Program, context: Context) -> Plan:
        return Plan(pass_text(self), fingerprint(program), (), (Remark("mine", program.ops[0].name, "note", "seen"),))

    def apply(self, program: weft.Program, plan: Plan) -> weft.Program:
        return program


def test_what_no_text_tells_is_not_kept() -> None:
    told: list[Any] = ["default", "safe", "bucket{cap_mb=1}", "bucket{only=inter_node}"]
    assert all(Settings(machine=MACHINE, passes=passes).uuid for passes in told)
    capped = PASSES["bucket"](cap_mb=lambda number: 1.0)  # type: ignore[call-arg]
    untold: list[Any] = ["by_hand", "bucket{only=parameters}", 'schedule{pin=["layers.0"]}', [capped], [Mine()]]
    assert not any(Settings(machine=MACHINE, passes=passes).uuid for passes in untold)


# Regions that are compiled once and called more than once


@torch.compiler.nested_compile_region
def region(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    group = dist.group.WORLD
    assert group is not None
    return torch.mm(torch.mm(x, all_gather_single(v, 0, group)), all_gather_single(w, 0, group))


def calling(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    group = dist.group.WORLD
    assert group is not None
    whole: Tensor = region(region(all_gather_single(x, 0, group), v, w), w, v)
    return torch.mm(whole, v.t())


def test_what_regions_launch_is_claimed_and_kept_as_well(claimed: list[tuple[str, ...]]) -> None:
    for _ in range(2):
        torch._dynamo.reset()
        weft.compile(calling, machine=MACHINE, passes="bucket")(
            torch.ones(64, 64), torch.ones(32, 64), torch.ones(32, 64)
        )
    line = "all_gather.start f32 over group 0 of 2: "
    assert claimed == [("part 0", f"{line}0, 1", "part 1", f"{line}0")] * 2
    assert last().cached


def test_regions_follow_though_the_graph_around_them_does_not_communicate(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = ("all_gather.start f32 over group 0 of 2: 0, 1 as 2",)

    def consent(launches: Launches, settings: Settings, follow: Follow) -> Verdict:
        assert follow(agreed).lines == agreed
        return Verdict(True)

    monkeypatch.setattr(backend, "consent", consent)
    monkeypatch.setattr(backend, "alone", lambda: False)
    run = weft.compile(lambda x, v, w: region(region(x, v, w), w, v), machine=MACHINE, passes="schedule")
    run(torch.ones(64, 64), torch.ones(32, 64), torch.ones(32, 64))
    assert (last().before.collectives, last().after.collectives, last().used) == (2, 1, True)


def test_a_copy_has_regions_of_its_own() -> None:
    inner = torch.fx.symbolic_trace(torch.nn.Tanh())
    graph = Graph()
    graph.output(graph.get_attr("region"))
    copied = backend._copied(GraphModule({"region": inner}, graph)).region
    assert isinstance(copied, GraphModule)
    assert copied.graph is not inner.graph


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


def test_torch_compile_goes_on_and_nothing_is_kept_alive() -> None:
    """It copies Inductor's settings, in which the pass is."""
    with weft.enabled(machine=MACHINE, passes="bucket"):
        called(torch.compile(gathers))
        second = torch.compile(lambda x, y: torch.mm(x, y))
        assert called(second, rows=16).shape == (16, 64)
        (hook,) = get_custom_graph_passes(config.post_grad_custom_post_pass)
    assert isinstance(hook, WeftPass)
    assert hook.ran
    assert hook.decisions == []


@pytest.mark.parametrize("how", ["eager", "inductor", "enabled"])
@pytest.mark.parametrize("estimator", ["analytic", "benchmark"])
def test_a_graph_follows_what_was_agreed_upon(how: str, estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = ("all_gather.start f32 over group 0 of 2: 0, 1 as 2",)

    def consent(launches: Launches, settings: Settings, follow: Follow) -> Verdict:
        assert follow(agreed).lines == agreed
        return Verdict(True)

    monkeypatch.setattr(backend, "consent", consent)
    monkeypatch.setattr(backend, "alone", lambda: False)
    monkeypatch.setattr(decisions, "consent", consent)
    options: dict[str, Any] = {"machine": MACHINE, "passes": "schedule", "compute_estimator": estimator}
    if how == "enabled":
        with weft.enabled(**options):
            called(torch.compile(gathers))
    else:
        called(weft.compile(gathers, mode=how, **options))
    assert (last().before.collectives, last().after.collectives, last().used) == (2, 1, True)
    assert str(last()).endswith("; it launches what other ranks decided")


@pytest.mark.parametrize("how", ["eager", "inductor", "enabled"])
def test_a_graph_that_cannot_launch_what_was_proposed_runs_as_it_was(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proposed = ("all_gather.start f32 over group 0 of 2: chunk, 1",)

    def consent(launches: Launches, settings: Settings, follow: Follow) -> Verdict:
        with pytest.raises(weft.AgreementError, match="it is more than a bucket"):
            follow(proposed)
        return Verdict(False, "they cannot all launch the same")

    monkeypatch.setattr(backend, "consent", consent)
    monkeypatch.setattr(backend, "alone", lambda: False)
    monkeypatch.setattr(decisions, "consent", consent)
    if how == "enabled":
        with weft.enabled(machine=MACHINE, passes="bucket"):
            called(torch.compile(gathers))
    else:
        called(weft.compile(gathers, mode=how, machine=MACHINE, passes="bucket"))
    assert not last().used
    assert str(last()).endswith("; not used: they cannot all launch the same")


def refusing(role: str) -> Callable[[Launches, Settings, Follow], Verdict]:
    def consent(launches: Launches, settings: Settings, follow: Follow) -> Verdict:
        if launches.key.startswith(role):
            raise weft.AgreementError("they differ")
        return Verdict(agreed=True)

    return consent


def summed(x: Tensor) -> Tensor:
    group = dist.group.WORLD
    assert group is not None
    return torch.mm(all_gather_single_autograd(x, 0, group), x).sum()


@pytest.mark.parametrize(
    ("how", "role", "expected"),
    [
        ("backend", "forward", BackendCompilerFailed),
        ("backend", "backward", weft.AgreementError),
        ("enabled", "forward", InductorError),
        ("enabled", "backward", InductorError),
    ],
)
def test_torch_wraps_what_is_raised_as_the_documentation_says(
    how: str, role: str, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "consent", refusing(role))
    with weft.enabled(machine=MACHINE) if how == "enabled" else nullcontext():
        run = torch.compile(summed) if how == "enabled" else weft.compile(summed, machine=MACHINE, mode="eager")
        with pytest.raises((weft.AgreementError, BackendCompilerFailed)) as caught:
            run(torch.ones(8, 8, requires_grad=True)).backward()
    assert type(caught.value) is expected
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), weft.AgreementError)
    assert "they differ" in str(caught.value)


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
