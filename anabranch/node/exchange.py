"""HTTP on one socket, until it perhaps becomes a websocket. No I/O: bytes in, requests out, and answers as bytes.

Requests come out one at a time: the next one when the one before is answered and `again` was called.
"""

from __future__ import annotations

import h11
import msgspec

from anabranch.node.http import Answer, Request

BODY_MAX = 1_048_576
HEAD_MAX = 65_536
HEAD_TOO_LARGE = 431


class Upgrade(msgspec.Struct, frozen=True):
    """The socket is to become a websocket; `rest` is what came behind the request."""

    key: str
    rest: bytes


class Ready(msgspec.Struct, frozen=True):
    """To be written at once, so that the body of a request comes; then go on."""

    data: bytes


class Refusal(msgspec.Struct, frozen=True):
    """The answer to what is no request that can be taken up; the socket closes after it."""

    answer: Answer


Step = Request | Upgrade | Ready | Refusal


def refusal(status: int, text: str, *headers: tuple[str, str]) -> Refusal:
    return Refusal(Answer(status, f"{text}\n".encode(), headers=(("connection", "close"), *headers)))


class Exchange:
    def __init__(self, peer: str) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)
        self._peer = peer
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._unread = 0  # what came since the last whole request

    @property
    def held(self) -> int:
        """Bytes of what is not a whole request yet, at the most."""
        return self._unread

    @property
    def begun(self) -> bool:
        """Whether a part of a request is here."""
        return self._unread > 0

    @property
    def over(self) -> bool:
        """Whether the socket is to be closed after what was answered."""
        return self._http.our_state is h11.MUST_CLOSE

    def receive(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._unread += len(data)

    def again(self) -> None:
        """The request was answered: on to the next."""
        self._http.start_next_cycle()

    def next(self) -> Step | None:
        """What is to be done next; None: wait for more."""
        try:
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    if (step := self._begin(event)) is not None:
                        return step
                elif isinstance(event, h11.Data) and self._head is not None:
                    self._body += event.data
                    if len(self._body) > BODY_MAX:
                        return refusal(413, "body too large")
                elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                    return self._whole(self._head)
                else:  # there is no more for now
                    return None
        except h11.RemoteProtocolError as error:
            too_large = error.error_status_hint == HEAD_TOO_LARGE
            return refusal(HEAD_TOO_LARGE, "head too large") if too_large else refusal(400, "bad request")

    def _begin(self, head: h11.Request) -> Step | None:
        if self._unread - len(self._http.trailing_data[0]) > HEAD_MAX:
            return refusal(HEAD_TOO_LARGE, "head too large")
        if _header(head, b"content-length") and _header(head, b"transfer-encoding"):
            return refusal(400, "bad request")  # a proxy before us may have seen another end of it
        if _header(head, b"upgrade").lower() == b"websocket":
            return self._upgrade(head)
        if int(_header(head, b"content-length") or 0) > BODY_MAX:
            return refusal(413, "body too large")
        self._head, self._body = head, bytearray()
        if self._http.they_are_waiting_for_100_continue:
            ready = h11.InformationalResponse(status_code=100, headers=[], reason=b"")
            return Ready(self._http.send(ready) or b"")
        return None

    def _whole(self, head: h11.Request) -> Request:
        body, self._head, self._body = bytes(self._body), None, bytearray()
        self._unread = len(self._http.trailing_data[0])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        return Request(head.method.decode("latin-1"), head.target.decode("latin-1"), headers, body, self._peer)

    def _upgrade(self, head: h11.Request) -> Upgrade | Refusal:
        key = _header(head, b"sec-websocket-key").decode("latin-1")
        asked = b"upgrade" in _header(head, b"connection").lower() and head.http_version == b"1.1"
        if not asked or head.method != b"GET" or not key or _header(head, b"sec-websocket-version") != b"13":
            return refusal(426, "a websocket of version 13 is spoken here", ("sec-websocket-version", "13"))
        if head.target.partition(b"?")[0] not in (b"/", b"/ws"):
            return refusal(404, "the websocket is at /")
        return Upgrade(key, self._http.trailing_data[0])

    def answer(self, answer: Answer, method: str = "") -> bytes:
        """The bytes of an answer; none for a peer that broke the protocol where none can follow any more."""
        headers = [
            ("content-type", answer.content_type),
            ("content-length", str(len(answer.body))),
            ("access-control-allow-origin", "*"),
            *answer.headers,
        ]
        try:
            out = self._http.send(h11.Response(status_code=answer.status, headers=headers, reason=b"")) or b""
            out += self._http.send(h11.Data(data=b"" if method == "HEAD" else answer.body)) or b""
            out += self._http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError:
            return b""
        return out


def _header(head: h11.Request, name: bytes) -> bytes:
    for key, value in head.headers:
        if key == name:
            return bytes(value)
    return b""
