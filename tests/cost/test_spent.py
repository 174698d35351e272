"""Where the time of traced steps went: on the host, under Inductor, on a device."""

from __future__ import annotations

from pathlib import Path

from tests.run.traces import Writer
from weft.cost.spent import Spent, spent


def test_on_the_host_waits_and_launches_count_once(tmp_path: Path) -> None:
    trace = Writer()
    for _ in range(2):
        trace.all_gather(5, 30, shard=10)  # a call inside of a call
        trace.op("aten::relu", 7, [20])
        trace.wait(25, 10)
    assert spent(trace.save(tmp_path / "trace.json")) == Spent(50, 10, None)


def test_inductors_code_is_what_no_op_took(tmp_path: Path) -> None:
    trace = Writer()
    trace.op("aten::mm", 100, [4, 4], [4, 4])  # before
    for _ in range(2):
        begin = trace.now
        trace.pause(3)
        trace.op("aten::mm", 10, [4, 4], [4, 4])
        trace.pause(4)
        trace.wait(20, 8)
        trace.graph(begin)
    trace.op("aten::mm", 100, [4, 4], [4, 4])  # behind
    assert spent(trace.save(tmp_path / "trace.json")) == Spent(40, 0, 14)


def test_on_a_device_the_kernels_tell(tmp_path: Path) -> None:
    trace = Writer()
    trace.all_gather(5, 30, shard=10)  # on the host this holds up nobody
    trace.kernel("gemm", 0, 10)
    trace.kernel("triton_poi_fused_add_0", 10, 5)
    trace.kernel("ncclDevKernel_AllGather", 8, 22)  # from 15 on alone
    trace.kernel("ncclDevKernel_AllReduce", 20, 15)  # 5 longer than the other
    trace.kernel("gemm", 33, 10)  # hides the last 2
    assert spent(trace.save(tmp_path / "trace.json")) == Spent(18, 0, 5)


def test_what_has_no_times_is_passed_over(tmp_path: Path) -> None:
    trace = Writer()
    trace.wait(25, 10)
    trace.events += [{"name": "process_name", "ph": "M"}, {"name": 3, "ts": 1, "dur": 1}, {"ts": "1", "dur": None}]
    assert spent(trace.save(tmp_path / "trace.json")) == Spent(25, 0, None)
