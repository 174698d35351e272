"""The store that all ranks of torch.distributed reach, seen so that no call on it outlasts a time limit."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from hashlib import sha256
from queue import SimpleQueue
from threading import Thread
from time import monotonic, sleep
from types import TracebackType
from typing import Any, TypeVar

from torch._C._distributed_c10d import PrefixStore, Store

from weft.errors import AgreementError

T = TypeVar("T")

LARGEST = 1 << 20  # bytes of one value; a TCPStore takes eight times that, and drops the connection beyond
_UNPACKED = 64 << 20
_PATIENCE = 0.75  # the part of the time limit for which other ranks are waited for; the rest is to bring it to an end
_FIRST_PAUSE_S, _PAUSE_S = 0.001, 0.1  # between two looks


class SharedStore:
    """A store for the time of one `with` block, in which every call returns or raises AgreementError by the time limit.

    The calls of torch block as long as the server is silent, whatever the store's own timeout. So they are made by a
    thread, and whoever waits for it stops waiting in time. That thread ends with the block; one that a silent server
    holds on to is left behind, and ends when its call does.

    Keys have a namespace of Weft's own. Values are written once, or depend on nothing but their key.
    """

    def __init__(self, store: Store, timeout_s: float) -> None:
        begin = monotonic()
        self.timeout_s = timeout_s
        self.patience_s = _PATIENCE * timeout_s
        self._deadline, self._patience = begin + timeout_s, begin + self.patience_s
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._worker = Thread(target=_serve, args=(store, self._calls), name="weft store", daemon=True)

    def __enter__(self) -> SharedStore:
        self._worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._calls.put(None)
        self._worker.join(max(0.0, self._deadline - monotonic()))

    def has(self, keys: Sequence[str]) -> bool:
        """Whether all of these have a value."""
        return self._ask(lambda store: store.check(list(keys)))

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Those that have no value. Asks little where few or none are missing, as the store only knows "all"."""
        if not keys or self.has(keys):
            return []
        half = len(keys) // 2
        return [*self.missing(keys[:half]), *self.missing(keys[half:])] if half else list(keys)

    def read(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those that have one."""
        gone = {*self.missing(keys)}
        there = [key for key in keys if key not in gone]
        return dict(zip(there, self._ask(lambda store: store.multi_get(there)), strict=True)) if there else {}

    def write(self, key: str, value: str) -> None:
        """Set a value that whoever sets it sets alike."""
        self._ask(lambda store: store.set(key, value))

    def write_once(self, key: str, value: str) -> bytes:
        """Set a value unless there is one, as one step for all ranks; and return the one that there is then."""
        return self._ask(lambda store: store.compare_set(key, "", value))

    def wait(self, keys: Sequence[str]) -> bool:
        """Wait until all have a value: True. False once other ranks have been waited for long enough."""
        pause = _FIRST_PAUSE_S
        while not self.has(keys):
            gap = self._gap(keys)  # to ask for all each time would keep the server of a thousand ranks from answering
            while not self.has([gap]):
                left = self._patience - monotonic()
                if left <= 0:
                    return False
                sleep(min(pause, left))
                pause = min(1.5 * pause, _PAUSE_S)
        return True

    def _gap(self, keys: Sequence[str]) -> str:
        """One that has no value, or had none just now, of keys of which some have none."""
        while len(keys) > 1:
            half = len(keys) // 2
            keys = keys[half:] if self.has(keys[:half]) else keys[:half]
        return keys[0]

    def _ask(self, call: Callable[[Store], T]) -> T:
        answer: Future[T] = Future()
        self._calls.put((call, answer))
        wait([answer], max(0.0, self._deadline - monotonic()))
        if not answer.done():
            answer.cancel()  # what has not begun yet must not be done later
            raise AgreementError(f"the store did not answer within the limit of {self.timeout_s:g} s")
        try:
            return answer.result()
        except Exception as error:  # a store may be anybody's, and fail as it likes
            first = str(error).partition("\n")[0]
            raise AgreementError(f"the store failed: {type(error).__name__}: {first}") from error


_Call = tuple[Callable[[Store], Any], "Future[Any]"]


def _serve(store: Store, calls: SimpleQueue[_Call | None]) -> None:
    """Make calls on the store, one after the other, until there is None to make."""
    mine = PrefixStore("weft", store)
    while (call := calls.get()) is not None:
        function, answer = call
        if not answer.set_running_or_notify_cancel():
            continue
        try:
            answer.set_result(function(mine))
        except Exception as error:
            answer.set_exception(error)


def packed(value: object) -> str:
    """A value of JSON as text for the store. Raises AgreementError if it is larger than a store should hold."""
    text = b64encode(zlib.compress(plain(value).encode())).decode()
    if len(text) > LARGEST:
        raise AgreementError(f"{len(text)} bytes are more than the {LARGEST} that ranks exchange through the store")
    return text


def unpacked(data: bytes) -> Any:
    """The value that was packed. Raises ValueError for anything else."""
    try:
        text = zlib.decompressobj().decompress(b64decode(data, validate=True), _UNPACKED)
        return json.loads(text)
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from error


def plain(value: object) -> str:
    """A value of JSON, written the same by everybody."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: object) -> str:
    """What stands for a value of JSON in a key."""
    return sha256(plain(value).encode()).hexdigest()[:32]
