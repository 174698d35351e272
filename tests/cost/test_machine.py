from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost.files import SMALL, machine
from weft.cost.machine import Machine, presets
from weft.cost.model import HardwareModel
from weft.errors import MachineError, WeftWarning
from weft.ir.program import KINDS, Collective, Group, Op
from weft.ir.specs import TensorSpec

MACHINES = {name: Machine.load(name) for name in presets()}
CLUSTERS = [name for name in MACHINES if name != "gloo-cpu"]
GIB = 2**30


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeftWarning)
        yield


def over(*ranks: int, kind: str = "all_gather") -> Collective:
    return Collective(kind, Group("g", ranks))


def test_the_presets_are_these() -> None:
    assert presets() == (
        "a100-ib200", "b200-ib400", "gb200-nvl72", "gb300-nvl72", "gloo-cpu", "h100-eth100", "h100-ib400",
        "h200-ib400", "mi300x-roce400", "mi355x-roce400",
    )  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_a_preset_is_a_hardware_model_under_its_own_name(name: str) -> None:
    found = MACHINES[name]
    assert isinstance(found, HardwareModel)
    assert found.name == name
    assert found.compute_slowdown >= 1
    assert found.path is not None
    assert Machine.load(found.path) == Machine.load(str(found.path)) == found


@pytest.mark.parametrize("name", MACHINES)
def test_every_figure_of_a_preset_names_its_source(name: str) -> None:
    path = MACHINES[name].path
    assert path is not None
    written = path.read_text().split("# Fitted by")[0]
    figures = [line for line in written.splitlines() if "=" in line and not line.startswith(("name", "about", "mesh"))]
    assert [line for line in figures if "  # " not in line] == []


def test_loading_imports_neither_torch_nor_numpy_and_takes_milliseconds() -> None:
    code = (
        "import sys; from time import process_time as now; from weft.cost.machine import Machine; start = now()\n"
        "Machine.load('gb200-nvl72'); print(now() - start < 0.1, {'torch', 'numpy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "True set()\n"


# Collectives


@pytest.mark.parametrize(("name", "kind"), [*product(MACHINES, KINDS)])
def test_more_bytes_never_take_less_time(name: str, kind: str) -> None:
    sizes = [int(2 ** (step / 4)) for step in range(32 * 4)]
    for ranks in ((0, 1), (0, 1, 2), tuple(range(8)), (0, 8, 16), tuple(range(12)), tuple(range(128))):
        times = [MACHINES[name].collective_us(over(*ranks, kind=kind), size) for size in sizes]
        assert all(before <= after * (1 + 1e-9) for before, after in pairwise(times)), ranks


@given(
    st.sampled_from(CLUSTERS), st.sampled_from(KINDS), st.sets(st.integers(0, 160), min_size=1), st.integers(0, 2**36)
)
def test_links_are_busy_for_no_longer_than_the_collective(name: str, kind: str, ranks: set[int], size: int) -> None:
    collective = over(*sorted(ranks), kind=kind)
    links = MACHINES[name].link_us(collective, size)
    whole = MACHINES[name].collective_us(collective, size)
    assert all(0 <= busy <= whole for busy in links.values())
    assert links.keys() <= {level.name for level in MACHINES[name].levels}
    assert bool(links) == (len(ranks) > 1)


@pytest.mark.parametrize(("name", "kind"), [*product(CLUSTERS, KINDS)])
def test_large_messages_grow_in_proportion(name: str, kind: str) -> None:
    for ranks in (tuple(range(8)), tuple(range(144))):
        once, twice = (MACHINES[name].collective_us(over(*ranks, kind=kind), size) for size in (8 * GIB, 16 * GIB))
        assert twice / once == pytest.approx(2, rel=0.06)


@pytest.mark.parametrize(("name", "kind"), [*product(CLUSTERS, KINDS)])
def test_a_group_across_nodes_is_never_faster_than_one_inside(name: str, kind: str) -> None:
    per_node = MACHINES[name].levels[0].ranks
    assert per_node is not None
    inside, across = tuple(range(8)), tuple(per_node * i for i in range(8))
    for size in (2**20, 2**24, 2**28):
        times = [MACHINES[name].collective_us(over(*ranks, kind=kind), size) for ranks in (inside, across)]
        assert times[0] <= times[1]


@pytest.mark.parametrize("name", CLUSTERS)
def test_more_nodes_are_never_faster(name: str) -> None:
    per_node = MACHINES[name].levels[0].ranks or 1
    for kind, size in product(("all_gather", "reduce_scatter", "all_reduce"), (2**16, 2**24, GIB)):
        groups = [tuple(range(per_node * nodes)) for nodes in (1, 2, 4, 8, 16)]
        times = [MACHINES[name].collective_us(over(*ranks, kind=kind), size) for ranks in groups]
        assert times == sorted(times), kind


def test_a_group_inside_a_node_never_touches_the_network() -> None:
    assert MACHINES["h100-ib400"].link_us(over(*range(8)), GIB).keys() == {"nvlink"}
    assert MACHINES["h100-ib400"].link_us(over(0, 8, 16), GIB).keys() == {"infiniband"}
    assert MACHINES["h100-ib400"].link_us(over(*range(16)), GIB).keys() == {"nvlink", "infiniband"}
    assert MACHINES["gb200-nvl72"].link_us(over(*range(16)), GIB).keys() == {"nvlink"}
    slow, fast = MACHINES["h100-eth100"], MACHINES["h100-ib400"]
    assert slow.collective_us(over(*range(8)), GIB) == fast.collective_us(over(*range(8)), GIB)
    assert slow.collective_us(over(*range(16)), GIB) > 3 * fast.collective_us(over(*range(16)), GIB)


def test_a_group_across_nodes_uses_the_ports_of_all_its_members() -> None:
    h100 = MACHINES["h100-ib400"]
    one, all_eight = h100.link_us(over(0, 8), GIB), h100.link_us(over(*range(16)), GIB)
    assert one["infiniband"] / all_eight["infiniband"] == pytest.approx(8 * (1 / 2) / (15 / 16))


def test_ranks_that_share_a_port_share_its_bandwidth(tmp_path: Path) -> None:
    alone = machine(tmp_path)
    shared = machine(tmp_path, SMALL.replace('name = "outer"', 'name = "outer"\nshared_by = 4'))
    for ranks in ((0, 4), tuple(range(8))):
        busy = [one.link_us(over(*ranks), 10**8)["outer"] for one in (alone, shared)]
        assert busy[1] == pytest.approx(4 * busy[0])


def test_a_collective_by_hand(tmp_path: Path) -> None:
    small = machine(tmp_path)
    # Measured among two in a node; a ring of three hops at 1 us and 3/4 of the bytes at 100 GB/s among four.
    assert small.collective_us(over(0, 1), 10_000) == pytest.approx(10**1.5)
    assert small.collective_us(over(*range(4)), 10**8) == pytest.approx(3 + 3 + 750)
    # Across two nodes one hop takes 5 us, and four links carry 7/8 of the bytes at 5 GB/s each.
    assert small.collective_us(over(*range(8)), 10**8) == pytest.approx(3 + 6 * 1 + 5 + 4375)
    assert small.collective_us(over(*range(8), kind="reduce_scatter"), 10**8) == pytest.approx(3 + 6 * 1 + 5 + 4375)
    # An all-reduce of few bytes goes up and down a tree: two hops of 5 us; of many bytes round a ring, twice.
    assert small.collective_us(over(0, 4, 8, kind="all_reduce"), 0) == pytest.approx(3 + 2 * 2 * 5)
    assert small.collective_us(over(0, 4, kind="all_reduce"), 10**8) == pytest.approx(3 + 2 * 5 + 20_000)
    # In an exchange a rank has an eighth of its bytes for each of the four on the other side, on a link of its own.
    assert small.collective_us(over(*range(8), kind="all_to_all"), 10**8) == pytest.approx(3 + 11 + 10_000)
    assert small.collective_us(over(0, 4, kind="permute"), 10**8) == pytest.approx(3 + 5 + 20_000)
    assert small.collective_us(over(*range(4), kind="broadcast"), 10**8) == pytest.approx(3 + 3 + 1_000)


def test_a_faster_link_carries_as_much_more_in_the_same_time() -> None:
    slow = Machine.load("h100-ib400")
    near, far = slow.faster("nvlink", 2), slow.faster("infiniband", 2)
    inside, across = Group("node", tuple(range(8))), Group("ports", tuple(range(0, 64, 8)))
    for kind in ("all_gather", "all_reduce"):  # measured within a node, and reckoned across
        node, ports = Collective(kind, inside), Collective(kind, across)
        assert near.collective_us(node, 2 << 24) == slow.collective_us(node, 1 << 24)
        assert near.collective_us(ports, 1 << 24) == slow.collective_us(ports, 1 << 24)
        assert far.collective_us(node, 1 << 24) == slow.collective_us(node, 1 << 24)
        assert 0.5 < far.collective_us(ports, 1 << 30) / slow.collective_us(ports, 1 << 30) < 0.55
    assert far.peer_us(inside, 1 << 20) == slow.peer_us(inside, 1 << 20) > near.peer_us(inside, 1 << 20)


def test_a_link_that_is_not_there_cannot_be_faster() -> None:
    with pytest.raises(MachineError, match="h100-ib400: has no level 'ethernet'; there are: nvlink, infiniband"):
        Machine.load("h100-ib400").faster("ethernet", 2)


def test_a_group_across_nodes_is_no_faster_than_what_was_measured_inside(tmp_path: Path) -> None:
    slow = machine(tmp_path, SMALL.replace("  10,\n  100,\n", "  1e6,\n  1e6,\n"))
    assert slow.collective_us(over(0, 1, 4, 5), 1000) == 1e6


def test_a_group_of_one_is_a_copy(tmp_path: Path) -> None:
    small = machine(tmp_path)
    assert small.collective_us(over(3), 10**6) == 2 + 2
    assert small.link_us(over(3), 10**6) == {}


def test_beyond_what_was_measured_there_is_a_warning() -> None:
    with pytest.warns(WeftWarning, match="h100-ib400: all_gather among 8 ranks was measured up to 2048 MiB"):
        MACHINES["h100-ib400"].collective_us(over(*range(8)), 4 * GIB)


@pytest.mark.parametrize("name", [name for name in CLUSTERS if MACHINES[name].curves])
def test_the_analytic_model_agrees_with_large_measured_collectives(name: str) -> None:
    measured = MACHINES[name]
    reckoned = replace(measured, curves=())
    for kind in ("all_gather", "reduce_scatter", "all_to_all", "all_reduce"):
        collective = over(*range(8), kind=kind)
        ratio = reckoned.collective_us(collective, GIB) / measured.collective_us(collective, GIB)
        assert 0.75 < ratio < 1.35, kind


# Matmuls

SIZES = (1, 17, 64, 200, 512, 1000, 4096, 8192, 28_672)


@pytest.mark.parametrize(("name", "dtype"), [*product(MACHINES, ("bf16", "f16", "f32", "f8e4m3fn", "f64", "i64"))])
def test_matmuls_are_bounded_and_grow(name: str, dtype: str) -> None:
    found = MACHINES[name]
    for b, m, k in product((1, 4), SIZES, SIZES):
        times = [found.matmul_us(dtype, b, m, n, k) for n in SIZES]
        assert all(before <= after * 1.002 for before, after in pairwise(times)), (b, m, k)
        assert all(us >= found.launch_us for us in times)
        assert all(
            2 * b * m * n * k / us / 1e6 <= found.peak_tflops(dtype) * 1.0001
            for n, us in zip(SIZES, times, strict=True)
        )


@pytest.mark.parametrize("name", CLUSTERS)
def test_matmuls_of_language_models_run_at_a_good_part_of_the_peak(name: str) -> None:
    found = MACHINES[name]
    for m, n, k in ((16_384, 28_672, 8192), (16_000, 8192, 28_672), (8192, 8192, 8192)):
        share = 2 * m * n * k / found.matmul_us("bf16", 1, m, n, k) / 1e6 / found.peak_tflops("bf16")
        assert 0.5 < share < 0.95


def test_a_thin_matmul_takes_as_long_as_its_weights() -> None:
    h100 = MACHINES["h100-ib400"]
    us = h100.matmul_us("bf16", 1, 1, 28_672, 8192)
    assert us == pytest.approx(h100.moved_us(28_672 * 8192 * 2), rel=0.3)


def test_f32_is_multiplied_as_tf32_only_where_the_machine_says_so() -> None:
    h100 = MACHINES["h100-ib400"]
    plain = replace(h100, accelerator=replace(h100.accelerator, f32_matmuls="f32"))
    shape = (1, 4096, 4096, 4096)
    assert h100.peak_tflops("f32") == 494.7
    assert plain.peak_tflops("f32") == 66.9
    assert plain.matmul_us("f32", *shape) > 4 * h100.matmul_us("f32", *shape)
    assert h100.peak_tflops("i64") == 66.9


def test_a_surface_by_hand(tmp_path: Path) -> None:
    small = machine(tmp_path)
    # All four knots take the same 4.19 ms; in between, and for anything smaller, so does everything.
    assert small.matmul_us("bf16", 1, 256, 256, 256) == pytest.approx(2 * 256**3 / 2e6)
    assert small.matmul_us("bf16", 2, 256, 256, 512) == pytest.approx(2 * 256**3 / 2e6)
    assert small.matmul_us("bf16", 1, 100, 256, 256) == pytest.approx(2 * 256**3 / 2e6)
    # Beyond the last knot the rate stays. f32 has no surface: the one there is, its arithmetic ten times slower.
    assert small.matmul_us("bf16", 1, 1024, 1024, 1024) == pytest.approx(2 * 1024**3 / 32e6)
    assert small.matmul_us("f32", 1, 1024, 1024, 1024) == pytest.approx(2 * 1024**3 / 32e6 * 10)
    assert small.moved_us(10**6) == 1


@given(
    st.sampled_from([*MACHINES]),
    st.sampled_from(["bf16", "f32", "f8e4m3fn"]),
    st.tuples(st.integers(1, 8), *[st.integers(1, 20_000)] * 3),
    st.integers(0, 3),
    st.data(),
)
def test_pieces_of_a_matmul_take_no_less_than_is_said(
    name: str, dtype: str, sizes: tuple[int, int, int, int], axis: int, data: st.DataObject
) -> None:
    found = MACHINES[name]
    first = data.draw(st.integers(0, sizes[axis]))
    cut = [(*sizes[:axis], part, *sizes[axis + 1 :]) for part in (first, sizes[axis] - first)]
    pieces = sum(found.matmul_us(dtype, *piece) for piece in cut if all(piece))
    assert found.matmul_pieces_us(dtype, *sizes) <= min(pieces, found.matmul_us(dtype, *sizes)) * (1 + 1e-9)


def test_a_matmul_that_is_slower_than_a_smaller_one_may_gain_by_being_cut() -> None:
    h100 = MACHINES["h100-ib400"]
    good, bad = (1, 8192, 8192, 4096), (1, 4096, 4096, 2048)
    assert h100.matmul_pieces_us("bf16", *good) == pytest.approx(h100.matmul_us("bf16", *good))
    assert h100.matmul_pieces_us("f32", *bad) < 0.96 * h100.matmul_us("f32", *bad)
    wide = Op("y", "aten.mm.default", out=(TensorSpec((8192, 8192), "bf16"),))
    inputs = (TensorSpec((8192, 4096), "bf16"), TensorSpec((4096, 8192), "bf16"))
    assert h100.pieces_us(wide, inputs) == pytest.approx(h100.op_us(wide, inputs))
