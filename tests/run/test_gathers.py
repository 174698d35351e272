"""Many gathers of one group under way at a time, over Gloo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from weft.run import local_ranks
from weft.run.gathers import keep_gathers_apart

SIZES = (4, 32, 16, 256, 128, 8, 64, 2048, 4, 32, 16, 1024)
ROUNDS = 300  # without the detour about one rank in five dies in as many


def gathered(rank: int, coalesced: bool) -> int:
    """How many gathers brought what they should."""
    ops, group, found = torch.ops._c10d_functional, dist.group.WORLD.group_name, 0  # type: ignore[union-attr]
    for number in range(ROUNDS):
        # Every other one is turned around in memory, which a gather takes as well.
        pieces = [torch.full((2, size), float(rank + number), dtype=torch.bfloat16).t() for size in SIZES[::2]]
        plain = [torch.full((size, 2), float(rank + number), dtype=torch.bfloat16) for size in SIZES[1::2]]
        pieces = [piece for both in zip(pieces, plain, strict=True) for piece in both]
        if coalesced:
            under_way = ops.all_gather_into_tensor_coalesced(pieces, 2, group)
        else:
            under_way = [ops.all_gather_into_tensor(piece, 2, group) for piece in pieces]
        for size, start in zip(SIZES, under_way, strict=True):
            expected = torch.tensor([number, number + 1], dtype=torch.bfloat16).repeat_interleave(2 * size)
            found += torch.equal(ops.wait_tensor(start), expected.view(2 * size, 2))
    return found


@pytest.mark.gloo
@pytest.mark.parametrize("coalesced", [False, True])
def test_gathers_that_are_under_way_together_all_arrive(coalesced: bool) -> None:
    assert local_ranks(gathered, 2, coalesced) == [ROUNDS * len(SIZES)] * 2


@pytest.fixture
def single() -> Iterator[str]:
    """The name of a group with nobody else in it: Gloo looks at what it is given all the same."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


@pytest.mark.parametrize("conjugated", [False, True])
def test_complex_numbers_arrive(single: str, conjugated: bool) -> None:
    keep_gathers_apart()
    ops, sent = torch.ops._c10d_functional, torch.tensor([[1 + 2j], [3j]])
    sent = sent.conj() if conjugated else sent
    assert torch.equal(ops.wait_tensor(ops.all_gather_into_tensor(sent, 1, single)), sent)
    starts = ops.all_gather_into_tensor_coalesced([sent, sent.real], 1, single)
    whole, real = map(ops.wait_tensor, starts)
    assert torch.equal(whole, sent)
    assert torch.equal(real, sent.real)
