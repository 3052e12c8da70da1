"""The node looks after itself every few seconds, whatever went wrong in one turn."""

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest
from inside import running

from anabranch.core.token import Position
from anabranch.node import main


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "SWEEP_SECONDS", 0.02)


class Calls:
    """In place of a method: fails the first few times."""

    def __init__(self, error: Exception, times: int = 1) -> None:
        self.count = 0
        self._error, self._times = error, times

    def __call__(self, *_: Any) -> None:
        self.count += 1
        if self.count <= self._times:
            raise self._error

    async def reach(self, count: int) -> None:
        for _ in range(500):
            if self.count >= count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"called {self.count} times")


@pytest.mark.parametrize("error", [apsw.IOError("disk I/O error"), OSError("no"), RuntimeError("a bug of ours")])
async def test_how_far_the_log_has_come_is_told_again_where_it_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with running(tmp_path) as node:
        announcing = Calls(error)
        monkeypatch.setattr(node.store, "announce", announcing)
        node.hub.tip = Position(1)
        await announcing.reach(2)
        await asyncio.sleep(0.1)
        assert announcing.count == 2


@pytest.mark.parametrize("failing", ["access.sweep", "hub.tell_passed", "prover.replace_hung", "store.announce"])
async def test_a_turn_that_fails_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    async with running(tmp_path) as node:
        of, name = failing.split(".")
        stumbling = Calls(RuntimeError("a bug of ours"))
        monkeypatch.setattr(getattr(node, of), name, stumbling)
        node.hub.tip = Position(1)
        await stumbling.reach(2)
        assert "a bug of ours" in caplog.text


async def test_hung_checkers_are_replaced_although_the_lock_file_never_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        monkeypatch.setattr(node.store, "announce", Calls(RuntimeError("a bug of ours"), 1_000))
        replacing = Calls(RuntimeError(), 0)
        monkeypatch.setattr(node.prover, "replace_hung", replacing)
        node.hub.tip = Position(1)
        await replacing.reach(5)
        monkeypatch.undo()
