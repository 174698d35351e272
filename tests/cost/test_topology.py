from __future__ import annotations

import pytest

from weft.cost.topology import Level, place

NODE = Level("node", 4, 100, 1, 1)
RACK = Level("rack", 16, 50, 1, 1)
ALL = Level("all", None, 10, 5, 0.5)
LEVELS = (NODE, RACK, ALL)


def crossed(*ranks: int) -> dict[str, tuple[int, int, int, int, int]]:
    found = place(LEVELS, ranks).crossings
    return {one.level.name: (one.parts, one.inside, one.joined, one.width, one.hops) for one in found}


@pytest.mark.parametrize("ranks", [(0, 1), (4, 5, 6, 7), (1, 3)])
def test_a_group_inside_a_node_crosses_nothing_else(ranks: tuple[int, ...]) -> None:
    assert crossed(*ranks) == {"node": (len(ranks), 1, len(ranks), 1, len(ranks) - 1)}


def test_a_group_of_one_rank_in_each_node_does_not_use_the_links_inside() -> None:
    assert crossed(0, 4, 8, 12) == {"rack": (4, 1, 4, 1, 3)}
    assert crossed(3, 19) == {"all": (2, 1, 2, 1, 1)}


def test_a_group_that_spans_nodes_uses_the_links_of_all_its_members() -> None:
    assert crossed(*range(8)) == {"node": (4, 1, 4, 1, 6), "rack": (2, 4, 8, 4, 1)}
    assert crossed(*range(32)) == {"node": (4, 1, 4, 1, 24), "rack": (4, 4, 16, 4, 6), "all": (2, 16, 32, 16, 1)}


def test_the_emptiest_part_is_the_narrowest_place() -> None:
    assert crossed(0, 1, 2, 3, 4) == {"node": (4, 1, 4, 1, 3), "rack": (2, 4, 5, 1, 1)}


def test_hops_add_up_to_a_ring() -> None:
    for size in range(1, 40):
        assert sum(one.hops for one in place(LEVELS, tuple(range(3, 3 + size))).crossings) == size - 1


def test_a_placement_counts_nodes() -> None:
    placement = place(LEVELS, (0, 1, 2, 5, 40))
    assert (placement.size, placement.nodes) == (5, 3)


def test_ranks_that_share_a_link_get_their_share_of_it() -> None:
    assert ALL.bytes_per_us(1) == 5_000
    assert Level("all", None, 10, 5, 0.5, shared_by=4).bytes_per_us(1) == 1_250


def test_in_a_mesh_a_group_uses_the_links_between_its_members() -> None:
    mesh = Level("mesh", 8, 70, 1, 1, mesh=True)
    assert [mesh.bytes_per_us(peers) for peers in (1, 3, 7)] == [10_000, 30_000, 70_000]
