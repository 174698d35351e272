"""What processes print that differ in nothing but the seed of Python's hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor


def printed(script: str, words: Sequence[str], text: str, processes: int) -> set[str]:
    """All that a script prints in so many processes, each with a seed of its own; `text` is its standard input."""

    def run(seed: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", script, *words]
        done = subprocess.run(command, input=text, text=True, env=environment, check=True, stdout=subprocess.PIPE)
        return done.stdout

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return {*threads.map(run, range(processes))}
