from __future__ import annotations

import pytest

from tests.analysis.texts import program
from weft.analysis.traffic import total_bytes


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("f32[4,3] = all_gather.start(%x) over g", 48),
        ("f32[8,3] = all_gather.start(%x) over four", 96),
        ("f32[1,3] = reduce_scatter.start(%x) sum over g", 24),
        ("f32[2,3] = reduce_scatter.start(%y) sum over four", 96),
        ("f32[2,3] = all_reduce.start(%x) sum over g", 24),
        ("f32[2,3] = all_reduce_.start(%x) sum over four", 24),
        ("f32[2,3] = broadcast.start(%x, 0) over four", 24),
        ("f32[5,3] = all_to_all.start(%x, [2, 3], [1, 1]) over g", 60),
        ("(f32[2,3], bf16[4]) = all_reduce.start([%x, %z]) sum over g", 32),
        ("(f32[1,3], bf16[2]) = reduce_scatter.start([%x, %z]) sum over g", 32),
        ("(f32[4,3], bf16[8]) = all_gather.start([%x, %z]) over g", 64),
    ],
)
def test_the_whole_tensor_of_a_collective(start: str, expected: int) -> None:
    subject = program(
        f"""
        %x: f32[2,3] = input()
        %y: f32[8,3] = input()
        %z: bf16[4] = input()
        %s: {start}
        """
    )
    assert total_bytes(subject["s"]) == expected


def test_symbolic_sizes_count_by_their_hints() -> None:
    subject = program(
        "%x: f32[n] = input()\n%s: f32[2*n] = all_gather.start(%x) over g", "group g = 0..1\nsymbol n = 5\n"
    )
    assert total_bytes(subject["s"]) == 40


def test_an_op_that_does_not_communicate_is_a_mistake() -> None:
    subject = program("%x: f32[2] = input()")
    with pytest.raises(AssertionError, match="%x communicates nothing"):
        total_bytes(subject["x"])
