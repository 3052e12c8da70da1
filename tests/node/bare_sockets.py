"""A websocket by hand: RFC 6455 byte by byte, for the frames that no library would send. It reads only when told to."""

import base64
import json
import os
import socket
import struct
from typing import Any

from sockets import PATIENCE, ConnectionEnded, Frame


class BareSocket:
    """A websocket by hand, blocking. `rcvbuf` keeps the kernel from hiding that we do not read."""

    def __init__(self, port: int, *, rcvbuf: int | None = None, timeout: float = PATIENCE, path: str = "/") -> None:
        self.sock = socket.socket()
        self.sock.settimeout(timeout)
        if rcvbuf is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.connect(("127.0.0.1", port))
        self.path = path
        self.port = port
        self.buffer = b""

    def __enter__(self) -> "BareSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def upgrade_request(self) -> bytes:
        key = base64.b64encode(os.urandom(16)).decode()
        return (
            f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()

    def read_head(self) -> str:
        while b"\r\n\r\n" not in self.buffer:
            chunk = self.sock.recv(65536)
            if not chunk:
                raise ConnectionEnded("before the end of the response head")
            self.buffer += chunk
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def handshake(self) -> None:
        self.sock.sendall(self.upgrade_request())
        head = self.read_head()
        assert " 101 " in head.splitlines()[0] + " ", head

    @staticmethod
    def frame(payload: bytes | str, opcode: int = 1, *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
        data = payload.encode() if isinstance(payload, str) else payload
        head = bytes([(0x80 if fin else 0) | (rsv << 4) | opcode])
        bit = 0x80 if masked else 0
        if len(data) < 126:
            head += bytes([bit | len(data)])
        elif len(data) < 65536:
            head += bytes([bit | 126]) + struct.pack("!H", len(data))
        else:
            head += bytes([bit | 127]) + struct.pack("!Q", len(data))
        if not masked:
            return head + data
        mask = os.urandom(4)
        repeated = (mask * (len(data) // 4 + 1))[: len(data)]
        mixed = int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")
        return head + mask + mixed.to_bytes(len(data), "big")

    def send(self, payload: bytes | str, opcode: int = 1, **how: Any) -> None:
        self.sock.sendall(self.frame(payload, opcode, **how))

    def _exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            chunk = self.sock.recv(1 << 20)
            if not chunk:
                raise ConnectionEnded("in a frame")
            self.buffer += chunk
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def read_frame(self) -> tuple[int, bytes]:
        first, second = self._exactly(2)
        assert not second & 0x80, "a server must not mask"
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._exactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._exactly(8))
        return first & 0x0F, self._exactly(size)

    def read_message(self) -> Frame:
        """The next text message, past pings and the like."""
        while True:
            opcode, data = self.read_frame()
            if opcode == 1:
                return json.loads(data)
            if opcode == 8:
                raise ConnectionEnded(f"close frame {data!r}")

    def read_until_end(self) -> list[bytes]:
        """All text messages until the relay ends the connection."""
        messages = []
        try:
            while True:
                opcode, data = self.read_frame()
                if opcode == 1:
                    messages.append(data)
        except (ConnectionEnded, ConnectionResetError):
            return messages
