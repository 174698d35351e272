"""The demo runs from end to end, on real ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.gloo
def test_the_demo_ends_with_the_same_bits() -> None:
    done = subprocess.run([sys.executable, "-m", "weft", "demo"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("are the same, bit for bit, on 2 Gloo processes\n")
