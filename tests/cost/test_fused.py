"""The price of matmuls with a collective inside them, on a machine with round numbers and on an H100."""

from __future__ import annotations

import pytest

from tests.analysis.texts import program
from tests.cost.toys import Toy
from weft.analysis.kernels import input_specs
from weft.cost import Machine
from weft.cost.fused import fused_steps, fused_us
from weft.errors import CostError
from weft.ir import Group, Program

TEXT = """
    %x: bf16[2,3] = input()
    %s: bf16[4,3] = input()
    %c: bf16[5,2,3] = input()
    %w: bf16[3,5] = input()
    %v: bf16[3,7] = input()
    %gather: (bf16[4,3], bf16[4,5], bf16[4,7]) = all_gather_matmul.fused(%x, [%w, %v], 0) over g
    %inner: (bf16[5,4,3], bf16[5,4,5]) = all_gather_matmul.fused(%c, [%w], 1) over g
    %scatter: bf16[2,5] = matmul_reduce_scatter.fused(%s, %w, 0) sum over g
"""


class Near(Toy):
    """The toy with memory that others reach at a byte a microsecond, and 1000 microseconds to get there."""

    name = "near"
    far_us = 1000.0

    def is_symmetric(self, group: Group) -> bool:
        return group.name == "g"

    def peer_us(self, group: Group, nbytes: int) -> float:
        return self.far_us + nbytes


class Next(Near):
    """The same with nothing to go."""

    far_us = 0.0


def price(device: Near, subject: Program, name: str) -> float:
    op = subject[name]
    return fused_us(device, op, input_specs(subject, op))


def held(device: Near, subject: Program, name: str) -> float:
    op = subject[name]
    return fused_steps(device, op, input_specs(subject, op)).held_us


BARRIERS = 3 * 100.0


def test_shards_are_multiplied_while_others_travel() -> None:
    subject = program(TEXT)
    shard = (100 + 2 * 5 * 3) + (100 + 2 * 7 * 3)
    copied = 100 + 2 * 2 * 3 * 2
    assert price(Next(), subject, "gather") == BARRIERS + 2 * shard + copied
    far = 1000 + 2 * 3 * 2
    assert price(Near(), subject, "gather") == BARRIERS + 3 * 1000 + shard + far + copied
    # It waits for the others, and for as much longer as a shard travels than it is multiplied.
    assert held(Next(), subject, "gather") == BARRIERS
    assert held(Near(), subject, "gather") == BARRIERS + 3 * 1000 + far - shard


def test_what_does_not_lie_with_the_dimension_outermost_is_copied() -> None:
    shard, sent = 100 + 10 * 5 * 3, 5 * 2 * 3 * 2
    assert price(Next(), program(TEXT), "inner") == BARRIERS + 2 * shard + 2 * (100 + 2 * sent)


def test_a_scattered_product_is_summed_at_the_end() -> None:
    shard, sent = 100 + 2 * 5 * 3, 2 * 5 * 2
    assert price(Next(), program(TEXT), "scatter") == BARRIERS + 2 * shard + 100 + 3 * sent


def test_a_group_without_symmetric_memory_is_an_error() -> None:
    subject = program(TEXT.replace("over g", "over h"))
    with pytest.raises(CostError) as caught:
        price(Near(), subject, "gather")
    assert str(caught.value) == (
        "%gather (all_gather_matmul.fused) needs symmetric memory, and near has none among the ranks of group h; "
        "split the matmul into chunks with collectives of their own"
    )


@pytest.mark.parametrize(
    ("machine", "ranks", "found"),
    [
        ("h100-ib400", range(8), True),
        ("h100-ib400", range(16), False),
        ("h100-ib400", range(0, 64, 8), False),
        ("gb200-nvl72", range(16), True),
        ("mi300x-roce400", range(8), True),
        ("mi355x-roce400", range(8), False),
        ("gloo-cpu", range(2), False),
        ("h100-ib400", range(1), False),
    ],
)
def test_which_groups_have_it(machine: str, ranks: range, found: bool) -> None:
    assert Machine.load(machine).is_symmetric(Group("g", tuple(ranks))) is found


def test_eight_h100s_as_measured() -> None:
    """pytorch/pytorch#143160: 2048 × 8192, gathered, by 8192 × 3584: fused in 354 us, one after the other in 301."""
    subject = program(
        """
        %x: bf16[256,8192] = input()
        %w: bf16[8192,3584] = input()
        %f: (bf16[2048,8192], bf16[2048,3584]) = all_gather_matmul.fused(%x, [%w], 0) over tp
        """,
        header="group tp = 0..7\n",
    )
    machine, op = Machine.load("h100-ib400"), subject["f"]
    assert machine.op_us(op, input_specs(subject, op)) == pytest.approx(354, rel=0.15)
