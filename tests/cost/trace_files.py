"""The handwritten traces, and variants of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TRACES = Path(__file__).parent / "traces"
RANK_0, RANK_1 = _TRACES / "straggler_rank0.json", _TRACES / "straggler_rank1.json"


def changed(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A trace with a change, written to `target`."""
    content = json.loads(source.read_text())
    change(content)
    target.write_text(json.dumps(content))
    return target
