"""A TCP proxy that counts what passes, in a thread of its own: how many bytes a link really moves."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Wiretap:
    """`url` leads to the target; `bytes` is what has passed, both ways together."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("ws://").rstrip("/").partition(":")
        self._target = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._server.getsockname()[1]}/"
        self.bytes = 0

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(262_144):
                self.bytes += len(data)
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def running(self) -> Iterator[Wiretap]:
        threading.Thread(target=self._serve, daemon=True).start()
        try:
            yield self
        finally:
            self._server.close()
