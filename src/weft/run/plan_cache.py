"""What Weft decided for graphs that Inductor has in its cache: one small JSON file beside each.

Inductor does not run a pass on a graph that it finds in its cache. The ranks must agree all the same, so what such a
graph launches is kept here, under the key that Inductor gives it. A file that is missing or damaged costs a
compilation, nothing else.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import cache_dir

from weft.errors import WeftWarning
from weft.run.cache import write_whole
from weft.run.claims import Launches
from weft.run.reports import Report

_VERSION = 1


def plan_cache() -> Path:
    """The directory: inside of Inductor's own, so that both are cleared together."""
    return Path(cache_dir()) / "weft"


def save(key: str, launches: Launches, report: Report) -> None:
    """Keep what was decided. Nobody ever sees half of it; if it cannot be written, that is a WeftWarning."""
    path = plan_cache() / f"{key}.json"
    content = {
        "weft_decision": _VERSION,
        "launches": {"key": launches.key, "lines": launches.lines, "ranks": launches.ranks},
        "report": report.to_json(),
    }
    try:
        write_whole(path, json.dumps(content))
    except OSError as error:
        warnings.warn(
            f"weft: {path} cannot be written: {error.strerror}; the next start will compile this graph anew",
            WeftWarning,
            stacklevel=2,
        )


def load(key: str) -> tuple[Launches, Report] | None:
    """What was decided for a graph; None if that is not known, with a WeftWarning if the file is damaged."""
    path = plan_cache() / f"{key}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["weft_decision"] != _VERSION:
            return None
        told = content["launches"]
        launches = Launches(str(told["key"]), tuple(map(str, told["lines"])), tuple(map(int, told["ranks"])))
        return launches, Report.from_json(content["report"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        warnings.warn(f"weft: {path} is damaged ({error}), and the graph is compiled anew", WeftWarning, stacklevel=2)
        return None
