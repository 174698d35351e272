"""What is no trace, or no whole one: refused with the file and the reason, and nothing else ever raised."""

from __future__ import annotations

import gzip
import json
import os
import random
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.cost.trace_files import RANK_0, changed
from weft.cost.profile import Profile
from weft.errors import ProfileError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n ", "is empty"),
        (b"\x00\x01\x02\xff" * 50, "is no JSON"),
        (b"weft 1\n", "is no JSON"),
        (b'{"a": 1}', "no list of traceEvents"),
        (b'{"traceEvents": 3}', "no list of traceEvents"),
        (b"{}", "no list of traceEvents"),
        (b'{"a" 1}', "is no trace: before the first event"),
        (b'{"traceEvents": []}', "neither ops with shapes nor collectives"),
        (b"[1, 2, 3]", "neither ops with shapes nor collectives"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph": "X"', "ends in the middle, after 1 events"),
        (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply"),
        (b'{"traceEvents": [{"dur": ' + b"9" * 5000 + b"}]}", "is no trace|ends in the middle"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-4], "damaged or cut short"),  # ids must not tell the time
        (b"\x1f\x8bnonsense", "damaged or cut short"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=message) as error:
        Profile.load(path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_may_come_through_a_pipe(tmp_path: Path, packed: bool) -> None:
    content, pipe = RANK_0.read_bytes(), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=[gzip.compress(content) if packed else content], daemon=True)
    writer.start()
    found = Profile.load(pipe)
    writer.join(60)
    assert found.ops == Profile.load(RANK_0).ops


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        Profile.load(tmp_path / "missing.json")
    with pytest.raises(ProfileError, match="cannot be read: Is a directory"):
        Profile.load(tmp_path)
    with pytest.raises(ProfileError, match="at least one trace"):
        Profile.load()


def test_one_rank_twice_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"is of rank 0, as is .*; give one trace of each"):
        Profile.load(RANK_0, RANK_0)


def test_a_trace_without_shapes_says_how_to_get_them(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        torch.ones(8, 8) @ torch.ones(8, 8)
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    with pytest.raises(ProfileError, match=r"record_shapes=True"):
        Profile.load(path)


def test_every_cut_and_every_wrong_byte_is_a_trace_or_an_error(tmp_path: Path) -> None:
    whole = RANK_0.read_bytes()
    path = tmp_path / "trace.json"
    draw = random.Random(0)
    for _ in range(300):
        place = draw.randrange(len(whole))
        cut, byte = draw.random() < 0.3, bytes([draw.choice(b'{}[]",:0a-\xff')])
        path.write_bytes(whole[:place] if cut else whole[:place] + byte + whole[place + 1 :])
        try:
            Profile.load(path)
        except ProfileError as error:
            assert str(path) in str(error)  # noqa: PT017  # either is fine, but nothing else is


@pytest.mark.parametrize("nonsense", [None, [], {}, "x", -1, True, 1e400, 10**400, [[None]], {"a": []}])
def test_fields_of_another_type_are_passed_over(nonsense: object, tmp_path: Path) -> None:
    fields = {name for event in json.loads(RANK_0.read_text())["traceEvents"] for name in (*event, *event["args"])}
    for name in sorted(fields):

        def spoil(content: dict[str, Any], name: str = name) -> None:
            for event in content["traceEvents"][:-1]:
                for place in (event, event.get("args")):
                    if isinstance(place, dict) and name in place:
                        place[name] = nonsense

        path = changed(RANK_0, tmp_path / "trace.json", spoil)
        with suppress(ProfileError):
            Profile.load(path)
