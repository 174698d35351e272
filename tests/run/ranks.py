"""Ranks as real processes that share a real TCPStore, whose server is a process too and can be stopped or killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from time import sleep
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore

from weft.errors import WeftError

# Processes that are forked off one that has imported torch, and has done nothing else, start in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.run.ranks", "weft.run.agreement", "weft.run.alignment"])


class Server:
    """The process that holds the store."""

    def __init__(self) -> None:
        mine, its = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_hold, args=(its,), daemon=True)
        self._process.start()
        self.port: int = mine.recv()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def store(self) -> Store:
        """A connection of this process."""
        return connected(self.port)

    def stop(self) -> None:
        """Let it be silent: it exists, takes connections and requests, and answers none."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        threads = [*Path(f"/proc/{self._process.pid}/task").iterdir()]
        while any("State:\tT" not in (thread / "status").read_text() for thread in threads):
            sleep(0.001)  # a thread may go on for a moment

    def end(self) -> None:
        self._process.kill()
        self._process.join()


class Rank:
    """A process that calls `function(store, *args)` after a while. Its result is what it returns, or a WeftError.

    It is connected when this is made; one that is `held` goes on when it is told to.
    """

    def __init__(
        self, server: Server, function: Callable[..., Any], *args: Any, after_s: float = 0, held: bool = False
    ) -> None:
        self._answer, its = CONTEXT.Pipe()
        call = (its, server.port, function, args, after_s)
        self._process: ForkServerProcess = CONTEXT.Process(target=_call, args=call, daemon=True)
        self._process.start()
        its.close()
        assert self._answer.recv() == "connected"
        if not held:
            self.go()

    def go(self) -> None:
        self._answer.send("go")

    def result(self) -> Any:
        """What came of it; "killed" if it did not live to say so. It has ended then, and in good order."""
        try:
            answer = self._answer.recv()
        except EOFError:
            answer = "killed"
        self._process.join()
        assert self._process.exitcode == (-signal.SIGKILL if answer == "killed" else 0)
        return answer


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.end()


def connected(port: int) -> Store:
    return TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=timedelta(seconds=5))


def kill_me(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hold(answer: Connection) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    answer.send(store.port)
    sleep(600)


def _call(answer: Connection, port: int, function: Callable[..., Any], args: tuple[Any, ...], after_s: float) -> None:
    store = connected(port)
    answer.send("connected")
    assert answer.recv() == "go"
    sleep(after_s)
    try:
        answer.send(function(store, *args))
    except WeftError as error:
        answer.send(error)
