"""Other sources of times in front of a machine: who is asked first, what falls back, and what is refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.cost.toys import Toy
from tests.cost.trace_files import RANK_0, RANK_1
from weft.analysis.kernels import input_specs
from weft.cost.coverage import coverage, warn_if_partial
from weft.cost.estimates import Estimates
from weft.cost.model import HardwareModel
from weft.cost.prices import prices
from weft.cost.profile import Profile
from weft.cost.times import CollectiveKey, CollectiveTimes, Times, op_key
from weft.errors import CostError, OptionError, WeftWarning
from weft.ir import Collective, Group, Op, TensorSpec

STEP = """
weft 1
group dp = 0..1

%x: bf16[64,32] = input()
%w: bf16[16,16] = input()
%v: bf16[32,16] = input()
%u: bf16[32,64] = input()
%started: bf16[32,16] = all_gather.start(%w) over dp
%gathered: bf16[32,16] = wait(%started)
%h: bf16[64,16] = aten.mm.default(%x, %gathered)
%i: bf16[64,16] = aten.mm.default(%x, %v)
%j: bf16[64,64] = aten.mm.default(%x, %u)
%s: bf16[64,16] = aten.add.Tensor(%h, %i)
return %s, %j
"""
DP = Group("dp", (0, 1))


def profiled(**options: object) -> Estimates:
    found = Profile.load(RANK_0, RANK_1)
    both = Estimates(Toy(), compute_estimator="profile", collective_estimator="profile", profile=found)
    return replace(both, **options)  # type: ignore[arg-type]


def inputs_of(program: weft.Program, name: str) -> tuple[Op, tuple[TensorSpec, ...]]:
    return program[name], input_specs(program, program[name])


def test_it_is_a_hardware_model_and_shares_what_the_machine_shares() -> None:
    estimates, toy = Estimates(Toy()), Toy()
    assert isinstance(estimates, HardwareModel)
    program = weft.parse(STEP)
    assert prices(program, estimates) == prices(program, toy)


def test_measured_times_come_before_the_machine_s() -> None:
    program, estimates = weft.parse(STEP), profiled()
    found = prices(program, estimates)
    index = program.index
    assert found.us[index["h"]] == found.us[index["i"]] == 220
    assert found.us[index["j"]] == 100 + 64 * 64 * 32  # not in the trace
    # 4096 bytes were gathered in 30 us; 1024 were not, and the toy takes 10 + 2 × 1024.
    assert estimates.collective_us(Collective("all_gather", DP), 4096) == 30
    assert found.comm_us[index["started"]] == 10 + 2 * 1024


def test_a_link_is_never_busy_for_longer_than_the_collective_takes() -> None:
    gather = Collective("all_gather", DP)
    assert profiled().link_us(gather, 4096) == {"nic": 30}
    assert Estimates(Toy()).link_us(gather, 4096) == {"nic": 4096}


def test_coverage_says_in_a_line_what_fell_back() -> None:
    program = weft.parse(STEP)
    found = coverage(program, profiled())
    assert str(found) == (
        "2 of 3 ops by profile and 0 of 1 collectives; 2 fell back to the machine: "
        "aten.mm.default bf16[64,32] bf16[32,64], all_gather of 1,024 bytes among 2 ranks"
    )
    with pytest.warns(WeftWarning, match="2 fell back to the machine"):
        warn_if_partial(found)


def test_coverage_is_silent_where_nothing_was_asked_for() -> None:
    found = coverage(weft.parse(STEP), Estimates(Toy()))
    assert str(found) == "all times are the machine's"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_partial(found)


def test_a_function_is_asked_and_may_decline() -> None:
    def only_wide(op: Op, inputs: tuple[TensorSpec, ...]) -> float | None:
        return 7.0 if inputs[1].shape[1] == 64 else None

    program = weft.parse(STEP)
    estimates = Estimates(
        Toy(), compute_estimator=only_wide, collective_estimator=lambda collective, nbytes: nbytes / 2
    )
    found = prices(program, estimates)
    assert found.us[program.index["j"]] == 7
    assert found.us[program.index["h"]] == 100 + 64 * 16 * 32
    assert found.comm_us[program.index["started"]] == 512
    assert str(coverage(program, estimates)).startswith(
        "1 of 3 ops by compute_estimator and 1 of 1 collectives by collective_estimator; 2 fell back"
    )


def test_of_ops_that_share_a_kernel_functions_and_benchmarks_may_speak_but_profiles_not() -> None:
    program = weft.parse(STEP)
    op, inputs = inputs_of(program, "s")
    benchmarks = Times({op_key(op, inputs): 4.0})
    alone = Profile({("aten::add", (((64, 16), "bf16"), ((64, 16), "bf16"))): 5.0}, CollectiveTimes())
    assert alone.op_us(op, inputs) == 5
    assert Estimates(Toy(), "profile", profile=alone).said_us(op, inputs) is None
    assert Estimates(Toy(), "benchmark", benchmarks=benchmarks).said_us(op, inputs) == 4
    said = Estimates(Toy(), lambda op, inputs: 6.0)
    assert said.said_us(op, inputs) == 6
    assert prices(program, said).us[program.index["s"]] == 6


def test_the_custom_function_comes_first_and_is_asked_for_both() -> None:
    def custom(what: Op | Collective, size: object) -> float | None:
        return 3.0 if isinstance(what, Collective) or what.name == "j" else None

    found = prices(program := weft.parse(STEP), profiled(custom_runtime_estimation=custom))
    assert [found.us[program.index[name]] for name in "hij"] == [220, 220, 3]
    assert found.comm_us[program.index["started"]] == 3


# What is refused


@pytest.mark.parametrize("answer", [-1, math.nan, math.inf, "3", True, [1.0], 10**400])
def test_an_impossible_answer_names_the_op(answer: object) -> None:
    def wrong(*_: object) -> object:
        return answer

    estimates = Estimates(Toy(), compute_estimator=wrong, collective_estimator=wrong)  # type: ignore[arg-type]
    program = weft.parse(STEP)
    with pytest.raises(CostError, match=r"compute_estimator says .* for %h \(aten.mm.default\); it must be microsec"):
        estimates.op_us(*inputs_of(program, "h"))
    with pytest.raises(CostError, match=r"collective_estimator says .* for all_gather of 4,096 bytes over dp"):
        estimates.collective_us(Collective("all_gather", DP), 4096)


def test_a_function_that_fails_is_named_with_the_op() -> None:
    estimates = Estimates(Toy(), custom_runtime_estimation=lambda what, size: 1 / 0)
    with pytest.raises(CostError, match=r"custom_runtime_estimation failed on %h \(aten.mm.default\): ZeroDivision"):
        estimates.op_us(*inputs_of(weft.parse(STEP), "h"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimates(Toy(), compute_estimator="guess"), 'compute_estimator must be "analytic", "benchmark", "p'),
        (lambda: Estimates(Toy(), collective_estimator=3), "collective_estimator must be .* or a function, not 3"),  # type: ignore[arg-type]
        (lambda: Estimates(Toy(), compute_estimator="profile"), 'compute_estimator="profile" needs profile='),
        (lambda: Estimates(Toy(), collective_estimator="benchmark"), "needs benchmarks="),
        (lambda: Estimates(Toy(), custom_runtime_estimation=3), "must be a function or None, not 3"),  # type: ignore[arg-type]
    ],
)
def test_options_that_cannot_be_used_are_refused(make: Callable[[], Estimates], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_torch_s_spelling_of_analytic_is_understood() -> None:
    assert Estimates(Toy(), "analytical", "analytical").asks == (False, False)


# Tables


def measured(*knots: tuple[int, float], lies: tuple[int, ...] = (0, 1)) -> CollectiveTimes:
    return CollectiveTimes({CollectiveKey("all_reduce", 2, lies, nbytes): us for nbytes, us in knots})


def test_between_two_sizes_the_time_is_on_the_line_and_beyond_there_is_none() -> None:
    table, reduce = measured((1000, 10.0), (100_000, 1000.0)), Collective("all_reduce", DP, "sum")
    assert table.find(reduce, 1000) == 10
    assert table.find(reduce, 10_000) == pytest.approx(100)
    assert table.find(reduce, 999) is None
    assert table.find(reduce, 100_001) is None
    assert table.find(Collective("all_gather", DP), 1000) is None


def test_a_group_that_lies_otherwise_was_not_measured() -> None:
    neighbours, distant = Group("a", (6, 7)), Group("b", (0, 8))
    table = measured((1000, 10.0))
    assert table.find(Collective("all_reduce", neighbours, "sum"), 1000) == 10
    assert table.find(Collective("all_reduce", distant, "sum"), 1000) is None
    unknown = measured((1000, 10.0), lies=())
    assert unknown.find(Collective("all_reduce", distant, "sum"), 1000) == 10


@given(st.lists(st.tuples(st.integers(0, 2**40), st.floats(0, 1e9)), max_size=6), st.integers(0, 2**41))
def test_what_is_found_lies_between_its_neighbours(knots: list[tuple[int, float]], nbytes: int) -> None:
    table = measured(*knots)
    found = table.find(Collective("all_reduce", DP, "sum"), nbytes)
    known = dict(knots)
    if nbytes in known:
        assert found == known[nbytes]
    elif found is not None:
        assert min(known.values()) * (1 - 1e-9) <= found <= max(known.values()) * (1 + 1e-9)


def test_the_key_of_an_op_has_no_names_and_all_that_counts() -> None:
    program = weft.parse(STEP)
    keys = {name: op_key(*inputs_of(program, name)) for name in "hij"}
    assert keys["h"] == keys["i"] != keys["j"]
    assert keys["h"] == "%_: bf16[64,16] = aten.mm.default(%_, %_) given bf16[64,32] bf16[32,16]"


def test_tables_are_joined_and_the_second_counts() -> None:
    joined = Times({"a": 1.0, "b": 2.0}, remarks=("one",)) | Times({"b": 3.0}, remarks=("two",))
    assert joined.ops == {"a": 1.0, "b": 3.0}
    assert joined.remarks == ("one", "two")


@pytest.mark.parametrize("size", [8, 9])
def test_symbols_count_by_their_hints(size: int) -> None:
    text = f"""
weft 1
symbol s0 = {size}

%x: f32[s0,4] = input()
%y: f32[4,4] = input()
%z: f32[s0,4] = aten.mm.default(%x, %y)
return %z
"""
    assert f"f32[{size},4]" in op_key(*inputs_of(weft.parse(text), "z"))
