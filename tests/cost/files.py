"""A small machine as text, for tests that break or bend it."""

from __future__ import annotations

from pathlib import Path

from weft.cost.machine import Machine

SMALL = """\
name = "small"
about = "Two nodes of four."

[accelerator]
name = "a device"
memory_gb = 10
memory_gb_per_s = 1000
memory_efficiency = 1
launch_us = 2

[accelerator.tflops]
f32 = 10
bf16 = 100

[[level]]
name = "inner"
ranks = 4
gb_per_s = 100
latency_us = 1
efficiency = 1

[[level]]
name = "outer"
gb_per_s = 10
latency_us = 5
efficiency = 0.5

[collectives]
start_us = 3
protocols = ["plain"]

[contention]
compute_slowdown = 1.25

[[curve]]
kind = "all_gather"
ranks = 2
bytes = [1000, 100000]  # [brackets] mean nothing here
us = [
  10,
  100,
]

[[matmul]]
dtype = "bf16"
area = [65536, 262144]
k = [256, 1024]
tflops = [
  [2, 8],
  [8, 32],
]
"""


def machine(folder: Path, text: str = SMALL) -> Machine:
    """The machine that a text describes."""
    path = folder / "small.toml"
    path.write_text(text)
    return Machine.load(path)
