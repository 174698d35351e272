"""What Weft decided for graphs that Inductor has in its cache: one small JSON file beside each.

Inductor does not run a pass on a graph that it finds in its cache. The ranks must agree all the same, so what such a
graph launches is kept here, under a name that no other compiled graph has. A file that is missing or damaged costs a
compilation, nothing else.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import cache_dir

from weft.errors import WeftWarning
from weft.run.cache import write_whole
from weft.run.claims import Launches
from weft.run.reports import Report

_VERSION = 2


def plan_cache() -> Path:
    """The directory: inside of Inductor's own, so that both are cleared together."""
    return Path(cache_dir()) / "weft"


def save(name: str, launches: Launches, reports: Sequence[Report]) -> None:
    """Keep what was decided for a graph, with a report for it and for each region in it.

    Nobody ever sees half of it; if it cannot be written, that is a WeftWarning.
    """
    path = plan_cache() / f"{name}.json"
    content = {
        "weft_decision": _VERSION,
        "launches": {"key": launches.key, "lines": launches.lines, "ranks": launches.ranks},
        "reports": [report.to_json() for report in reports],
    }
    try:
        write_whole(path, json.dumps(content))
    except OSError as error:
        warnings.warn(
            f"weft: {path} cannot be written: {error.strerror}; the next start will compile this graph anew",
            WeftWarning,
            stacklevel=2,
        )


def load(name: str) -> tuple[Launches, list[Report]] | None:
    """What was decided for a graph; None if that is not known, with a WeftWarning if the file is damaged."""
    path = plan_cache() / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["weft_decision"] != _VERSION:
            return None
        told = content["launches"]
        launches = Launches(str(told["key"]), tuple(map(str, told["lines"])), tuple(map(int, told["ranks"])))
        return launches, [*map(Report.from_json, content["reports"])]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        warnings.warn(f"weft: {path} is damaged ({error}), and the graph is compiled anew", WeftWarning, stacklevel=2)
        return None
