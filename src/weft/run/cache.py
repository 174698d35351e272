"""Measured times on disk: a JSON file, by what they were measured on."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from weft.errors import WeftWarning

_VERSION = 1


def user_cache() -> Path:
    """Where measured times are kept unless somebody says otherwise: the user's cache, as XDG has it."""
    home = os.environ.get("XDG_CACHE_HOME")
    # A path that is not absolute is to be ignored, says XDG.
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return base / "weft" / "times.json"


def load_times(path: Path, device: str) -> dict[str, float]:
    """The times that were measured on a device. A file that is damaged is ignored, with a WeftWarning."""
    return {key: float(us) for key, us in _read(path).get(device, {}).items() if is_time(us)}


def save_times(path: Path, device: str, times: Mapping[str, float]) -> None:
    """Add times to those in the file. Nobody ever sees half of it; if it cannot be written, that is a WeftWarning."""
    kept = _read(path)
    kept[device] = {**kept.get(device, {}), **times}
    text = json.dumps({"weft_times": _VERSION, "devices": kept}, indent=0, sort_keys=True)
    try:
        write_whole(path, text)
    except OSError as error:
        warnings.warn(f"{path}: measured times cannot be kept: {error.strerror}", WeftWarning, stacklevel=2)


def write_whole(path: Path, text: str) -> None:
    """Write a file of which nobody ever sees half. OSError if it cannot be written, and then nothing is left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
            temporary = Path(file.name)
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(f"{path}: is no file of measured times, and is ignored: {error}", WeftWarning, stacklevel=3)
        return {}
    devices = content.get("devices") if isinstance(content, dict) else None
    if not isinstance(devices, dict) or content.get("weft_times") != _VERSION:
        warnings.warn(f"{path}: is no file of measured times, and is ignored", WeftWarning, stacklevel=3)
        return {}
    return {device: times for device, times in devices.items() if isinstance(times, dict)}


def is_time(us: object) -> bool:
    """Whether this can be a time: a number, not negative, not infinite."""
    return isinstance(us, float | int) and not isinstance(us, bool) and us < 1e18 and isfinite(us) and us >= 0
