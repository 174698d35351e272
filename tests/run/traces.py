"""Handwritten traces of steps on a CPU, with round numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Dims = list[list[int]]


class Writer:
    """Writes down what runs, one after the other; `now` is the time on the thread of the step."""

    def __init__(self, *group_sizes: int) -> None:
        self.now = 0
        self.events: list[dict[str, Any]] = []
        self._groups = [{"pg_name": str(size), "ranks": [*range(size)]} for size in group_sizes or (2,)]

    def op(self, name: str, us: int, *dims: list[int]) -> None:
        """An op of the host, on tensors of f32."""
        self._add(name, "cpu_op", self.now, us, 1, list(dims))
        self.now += us

    def pause(self, us: int) -> None:
        """Nothing that is traced."""
        self.now += us

    def all_gather(self, start_us: int, us: int, shard: int) -> None:
        """Gather from two ranks: the call takes `start_us`, and Gloo `us` from then on."""
        self._collective(
            "all_gather_into_tensor", "_allgather_base_", "all_gather", start_us, us, [[2 * shard], [shard]]
        )

    def all_reduce(self, start_us: int, us: int, size: int) -> None:
        self._collective("all_reduce", "allreduce_", "all_reduce", start_us, us, [[size]])

    def wait(self, us: int, size: int) -> None:
        self.op("_c10d_functional::wait_tensor", us, [size])

    def graph(self, begin: int) -> None:
        """Say that Inductor's code ran from then until now."""
        self._add("## Call CompiledFxGraph abc ##", "user_annotation", begin, self.now - begin, 1, [])

    def kernel(self, name: str, begin: int, us: int) -> None:
        """A kernel on a device."""
        self._add(name, "kernel", begin, us, 7, [])

    def save(self, path: Path) -> Path:
        info = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": self._groups}
        path.write_text(json.dumps({"distributedInfo": info, "traceEvents": self.events}))
        return path

    def _collective(self, name: str, call: str, run: str, start_us: int, us: int, dims: Dims) -> None:
        self._add(f"c10d::{call}", "cpu_op", self.now + 1, start_us - 1, 1, dims)
        self.op(f"_c10d_functional::{name}", start_us, dims[-1])
        self._add(f"gloo:{run}", "user_annotation", self.now, us, 2, dims[-1:])

    def _add(self, name: str, category: str, begin: int, us: int, thread: int, dims: Dims) -> None:
        args = {"Input Dims": dims, "Input type": ["float"] * len(dims)}
        event = {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": us, "pid": 1, "tid": thread}
        self.events.append({**event, "args": args})
