"""A disk without room: the admin API says whether a change holds and what to do, and the node goes on."""

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from authors import Author, versions
from sockets import RelayClient

from anabranch.config import Settings
from anabranch.node.http import Request
from anabranch.node.main import Node
from anabranch.store.contract import StoreError
from anabranch.store.opening import open_store
from anabranch.store.sqlite_writer import SqliteWriter

Fill = Callable[..., None]
TOKEN = "t"
ROOM = "is there room on the disk? see the log"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node in this process, so that its disk can be filled."""
    settings = Settings(port=0, data=str(tmp_path), admin_token=TOKEN, verify_workers=1)
    own = Node(settings, open_store(tmp_path, "", "normal"))
    await own.start()
    yield own
    await own.stop()


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Let some of what the writer does find no room."""

    def no_room(*_: object) -> None:
        raise StoreError("nothing was changed: database or disk is full")

    return lambda *names: [monkeypatch.setattr(SqliteWriter, name, no_room) for name in names]


async def ask(node: Node, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    sent = b"" if body is None else msgspec.json.encode(body)
    answer = await node.http.answer(Request(method, f"/admin/{path}", headers, sent, "127.0.0.1"))
    return answer.status, msgspec.json.decode(answer.body)


async def with_history(node: Node, author: Author) -> None:
    async with RelayClient.open(f"ws://{node.address}/") as client:
        await client.store(*versions(author, "note", 9))


async def test_a_change_that_finds_no_room_says_that_nothing_was_changed(node: Node, fill: Fill) -> None:
    _, key = await ask(node, "POST", "keys", {"label": "old"})
    fill("save_access_key", "delete_access_key", "save_setting", "remove")
    name = key["key"]
    before = (await ask(node, "GET", "keys"), await ask(node, "GET", "retention"))
    for method, path, body in (
        ("POST", "keys", {}),
        ("PATCH", f"keys/{name}", {"label": "new"}),
        ("DELETE", f"keys/{name}", None),
        ("DELETE", f"events/{'0' * 64}", None),
        ("PATCH", "retention", {"payload_retention_days": 3}),
    ):
        status, answer = await ask(node, method, path, body)
        assert (status, answer) == (507, {"error": f"nothing was changed, for it could not be stored: {ROOM}"}), path
    assert (await ask(node, "DELETE", "keys/*"))[0] == 507
    assert (await ask(node, "GET", "keys"), await ask(node, "GET", "retention")) == before


async def test_a_compaction_that_finds_no_room_says_that_it_was_cut_short(
    node: Node, author: Author, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_history(node, author)
    with monkeypatch.context() as full:
        full.setattr(SqliteWriter, "compact", lambda *_: fail())
        status, answer = await ask(node, "PATCH", "retention", {"payload_retention_days": 0})
        assert (status, answer["payload_retention_days"], answer["compacted_snapshots"]) == (200, 0, 0)
        assert (
            answer["warning"].startswith("this is in force, but compaction was cut short") and ROOM in answer["warning"]
        )
        status, answer = await ask(node, "POST", "compact")
        assert status == 507 and answer["error"].startswith(f"compaction was cut short: {ROOM}")
    status, answer = await ask(node, "POST", "compact")
    assert (status, answer["compacted_snapshots"]) == (200, 5), "the next one goes on"
    assert "warning" not in (await ask(node, "PATCH", "retention", {"payload_retention_days": 0}))[1]


async def test_space_that_cannot_be_given_back_is_a_line_in_the_log(
    node: Node, author: Author, fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    await with_history(node, author)
    fill("return_space")
    status, answer = await ask(node, "PATCH", "retention", {"payload_retention_days": 0})
    assert (status, answer["compacted_snapshots"]) == (200, 5)
    assert "no space could be given back" in caplog.text and caplog.records[-1].levelno == logging.ERROR


async def test_a_store_that_cannot_be_read_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(node.store.open_reader()), "access_keys", lambda self: fail())
    status, answer = await ask(node, "GET", "keys")
    assert (status, answer["error"]) == (503, "the store could not be read: try again later, and see the log")


def fail() -> None:
    raise StoreError("database or disk is full")
