"""An output directory that gets all its files or none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from weft.errors import OptionError


@contextmanager
def output_directory(target: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
    """A dictionary for the texts of the files, by their names; when the work is done they are written to `target`.

    A target that cannot be written is an OptionError before the work begins: a folder for the files is made at once,
    and moved when they are all there. If the work fails, nothing is left. In a target that exists other files stay.
    """
    place = Path(target)
    with _refused(target):
        _check(target, place, names)
        held = TemporaryDirectory(prefix=".weft-", dir=place if place.is_dir() else place.parent)
    with held as folder:
        texts: dict[str, str] = {}
        yield texts
        with _refused(target):
            # Inside is a folder with the rights that a new one has here; a temporary one is closed to others.
            inner = Path(folder) / "files"
            inner.mkdir()
            for name, text in texts.items():
                (inner / name).write_text(text, encoding="utf-8")
            _move(inner, place)


def _check(target: str, place: Path, names: Sequence[str]) -> None:
    if not target:
        raise OptionError("--out is empty: give a directory")
    if place.exists() and not place.is_dir():
        raise OptionError(f"cannot write {target}: it is a file; give a directory as --out")
    for name in names:
        if (place / name).is_dir():
            raise OptionError(f"cannot write {target}: {name} is a directory there; give another --out")


def _move(inner: Path, place: Path) -> None:
    if not place.exists():
        inner.rename(place)
        return
    for path in sorted(inner.iterdir()):
        os.replace(path, place / path.name)


@contextmanager
def _refused(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OptionError(f"cannot write {target}: {error.strerror}; give another --out") from None
