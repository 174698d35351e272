"""What must hold of `bucket` on any program. The goldens show each behaviour and refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import event, given

from tests.programs import programs
from tests.values import assert_computes_the_same, bits
from weft import pipeline
from weft.errors import OptionError
from weft.ir import Program, parse
from weft.passes import PASSES, Context, make_pass
from weft.passes.bucket import BucketPass
from weft.run import virtual

MODES = pytest.mark.parametrize("mode", ["default", "custom_op", "coalesced", "coalesced_pack", "multidtype"])


@MODES
@given(subject=programs(steps=(10, 40), mutate_inputs=True))
def test_the_merged_program_computes_the_same(mode: str, subject: Program) -> None:
    result = pipeline.run(subject, [make_pass(PASSES["bucket"], {"mode": mode})])
    event(f"{mode}: {len(subject.starts) - len(result.program.starts)} fewer")
    assert_computes_the_same(subject, result.program)


# Sizes that are not the hints, a row of each rank, a bucket that another one feeds, conversions in front.
SHAPES = """weft 1
group dp = 0..1
symbol s0 = 6

%a: f32[s0,4] = input()
%b: f32[1,3] = input()
%c: f32[2] = input()
%ca: bf16[s0,4] = aten._to_copy.default(%a, dtype=bf16)
%cb: bf16[1,3] = aten._to_copy.default(%b, dtype=bf16)
%cc: bf16[2] = aten._to_copy.default(%c, dtype=bf16)
%ra: bf16[2*s0,4] = all_gather.start(%ca) over dp
%rb: bf16[2,3] = all_gather.start(%cb) over dp
%rc: bf16[4] = all_gather.start(%cc) over dp
%wa: bf16[2*s0,4] = wait(%ra)
%wb: bf16[2,3] = wait(%rb)
%wc: bf16[4] = wait(%rc)
%sa: bf16[s0,4] = reduce_scatter.start(%wa) sum over dp
%sb: bf16[1,3] = reduce_scatter.start(%wb) sum over dp
%sc: bf16[2] = reduce_scatter.start(%wc) sum over dp
%ga: bf16[s0,4] = wait(%sa)
%gb: bf16[1,3] = wait(%sb)
%gc: bf16[2] = wait(%sc)
%v: bf16[6] = aten.view.default(%wb, [6])
%n: bf16[6] = aten.sin.default(%v)
return %ga, %gb, %gc, %n
"""


@pytest.mark.parametrize("size", [0, 1, 2, 9])
@MODES
def test_sizes_are_those_of_the_run(mode: str, size: int) -> None:
    subject = parse(SHAPES)
    merged = pipeline.run(subject, [BucketPass(mode=mode)]).program
    assert len(merged.starts) == {"multidtype": 4}.get(mode, 2)
    torch.manual_seed(size)
    given = [[torch.randn(size, 4), torch.randn(1, 3), torch.randn(2)] for _ in range(2)]
    assert bits(virtual(merged, given)) == bits(virtual(subject, given))


CAP = "bucket: a cap must be a number of megabytes, at least 0, not "
ONLY = (
    "bucket: only must be all, parameters, inter_node or the path of a module such as layers.0, "
    "where * stands for any name, not "
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cap_mb": -1}, f"{CAP}-1"),
        ({"cap_mb": float("nan")}, f"{CAP}nan"),
        ({"cap_mb": "25"}, f"{CAP}'25'"),
        ({"cap_mb": True}, f"{CAP}True"),
        ({"cap_mb": None}, f"{CAP}None"),
        ({"cap_mb": (25, -1.5)}, f"{CAP}-1.5"),
        ({"cap_mb": ()}, "bucket: cap_mb needs at least one number"),
        ({"max_count": 0}, "bucket: max_count must be at least 1, not 0"),
        ({"max_count": "2"}, "bucket: max_count must be at least 1, not '2'"),
        (
            {"mode": "x"},
            "bucket: there is no mode 'x'; there are: default, custom_op, multidtype, coalesced, coalesced_pack",
        ),
        (
            {"kinds": ("broadcast",)},
            "bucket: there is no kind 'broadcast' to merge; there are: "
            "all_gather, reduce_scatter, all_reduce, all_to_all",
        ),
        ({"only": ""}, f"{ONLY}''"),
        ({"only": "layers 0"}, f"{ONLY}'layers 0'"),
        ({"only": 7}, f"{ONLY}7"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        BucketPass(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize("cap", [-1.0, float("nan"), "25"])
def test_a_function_that_gives_no_cap_is_refused(cap: Any) -> None:
    subject = parse(SHAPES)
    with pytest.raises(OptionError) as caught:
        BucketPass(cap_mb=lambda number: cap).plan(subject, Context.of(subject))
    assert str(caught.value) == f"{CAP}{cap!r}"


def test_a_path_without_any_module_says_so() -> None:
    subject = parse(SHAPES)
    (remark,) = BucketPass(only="layers.0").plan(subject, Context.of(subject)).remarks
    assert str(remark) == (
        "bucket: note: %ra: no collective is of layers.0: no collective of this program says where it comes from"
    )


def test_a_path_where_nothing_communicates_is_no_matter() -> None:
    subject = parse("weft 1\nreturn\n")
    assert BucketPass(only="layers.0").plan(subject, Context.of(subject)).remarks == ()
