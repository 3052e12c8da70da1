"""What the tests of the command line stand on: a history, somebody who holds a store, a stand-in for a node."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from click.testing import Result

from anabranch.core import clock as clocks
from anabranch.core.nostr import Event, Keys, serialise
from anabranch.store.sqlite import SqliteStore

AUTHOR = Keys(b"\x07" * 32)
START = 1_700_000_000
DOCS = Path(__file__).parent.parent.parent / "docs" / "reference"
TOKEN = "correct horse battery staple"


def snapshot(d: str, clock: dict[str, int], at: int, action: str = "put") -> Event:
    return AUTHOR.sign(42061, [["d", d], ["o", action], *clocks.tags(clock)], "sealed " * 300, at)


HISTORY = [
    *(snapshot("straight", {"laptop": n}, START + n) for n in range(1, 31)),
    snapshot("forked", {"laptop": 1}, START + 40),
    snapshot("forked", {"phone": 1}, START + 41),
    AUTHOR.sign(1, [["t", "water"]], "plain", START + 50),
]


def jsonl(events: list[Event]) -> bytes:
    return b"".join(serialise(event) + b"\n" for event in events)


def answer(result: Result, code: int = 0) -> dict[str, Any]:
    """The one JSON object on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout.count("\n") == 1
    value = json.loads(result.stdout)
    assert isinstance(value, dict)
    return value


@contextmanager
def held(folder: str, url: str = "") -> Iterator[SqliteStore]:
    """Somebody holds the store."""
    store = SqliteStore.open(Path(folder))
    store.announce(url)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def admin_api(replies: dict[tuple[str, str], tuple[int, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """A stand-in for a node's admin API; what it was asked stands in the list."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.command, self.path, self.headers.get("Authorization"), json.loads(body or b"null")))
            status, reply = replies[(self.command, self.path)]
            text = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
