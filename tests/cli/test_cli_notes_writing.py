"""What a person writes into `anabranch notes` stands on what they saw, is not lost, and is read by nobody else."""

import asyncio
import os
import re
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from notes_devices import Background, Device, Editor

from anabranch.cli.shell import Exit
from anabranch.client import FileFailed, Keys, Replica
from anabranch.core import notes
from anabranch.core.nip19 import parse_secret


def of(folder: Path) -> list[str]:
    """The texts in a folder that only its owner may enter, each readable by nobody else."""
    if not folder.exists():
        return []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    return [file.read_text() for file in files]


async def written_apart(device: Device, note: str, *texts: str) -> None:
    """Versions that stand on the same one, as if other devices had sent them."""
    async with await opened(device) as replica:
        document = await replica.get(note)
        for text in texts:
            await replica.put(note, notes.new(text, "other", 1), base=document)


async def opened(device: Device) -> Replica:
    keys = Keys(parse_secret((device.folder / "key").read_text()))
    return await Replica.open(device.folder / "notes.db", keys, follow=False)


@pytest.fixture
def clash(laptop: Device) -> str:
    """A note in conflict, without a relay."""
    note = laptop.new("# List\nmilk")
    asyncio.run(written_apart(laptop, note, "# List\noat milk", "# List\neggs"))
    return note


def test_what_came_while_the_editor_was_open_is_a_conflict_that_is_told(laptop: Device, editor: Editor):
    note = laptop.new("shown")
    other = f"{sys.executable} -m anabranch notes edit {note} --text theirs --data {laptop.folder} < /dev/null"
    editor(f"{other} && echo mine > $1")
    result = laptop.run("edit", note)
    assert "saved, but another version came meanwhile" in result.stderr
    assert f"anabranch notes resolve {note[:8]} --data {laptop.folder}" in result.stderr
    clashing = laptop.json("conflicts")["conflicts"]
    assert {one["markdown"].strip() for one in clashing[0]["versions"]} == {"mine", "theirs"}


def test_a_version_that_came_during_a_merge_is_not_settled_unseen(laptop: Device, editor: Editor, clash: str):
    first = laptop.json("history", clash)["versions"][-1]["version"]
    other = f"{sys.executable} -m anabranch notes edit {clash} --base {first} --text unseen --data {laptop.folder}"
    editor(f"{other} && echo merged > $1")
    assert "settled, but another version came meanwhile" in laptop.run("resolve", clash, stdin="e\n").stderr
    versions = laptop.json("conflicts")["conflicts"][0]["versions"]
    assert {one["markdown"].strip() for one in versions} == {"merged", "unseen"}


@pytest.mark.parametrize("command", ["delete", "restore", "resolve"])
def test_every_write_stands_on_what_was_shown(laptop: Device, monkeypatch: pytest.MonkeyPatch, command: str):
    note = laptop.new("one")
    laptop.run("edit", note, "--text", "two")
    if command == "resolve":
        asyncio.run(written_apart(laptop, note, "left", "right"))
    written = getattr(Replica, command)

    async def overtaken(replica: Replica, *arguments: Any, **named: Any) -> str:
        async with await opened(laptop) as other:  # upon the first version: one that nobody here has seen
            await other.put(note, notes.new("unseen", "other", 1), base=[(await other.history(note))[-1].id])
        return await written(replica, *arguments, **named)

    monkeypatch.setattr(Replica, command, overtaken)
    more = {"delete": [], "restore": ["2"], "resolve": ["--pick", "1"]}[command]
    assert laptop.json(command, note, *more)["in_conflict"]
    versions = laptop.json("conflicts")["conflicts"][0]["versions"]
    assert len(versions) == 2 and "unseen" in [one["markdown"] for one in versions]


def test_a_base_keeps_what_came_since(laptop: Device, clash: str):
    seen = [one["version"][:8] for one in laptop.json("conflicts")["conflicts"][0]["versions"]]
    assert "two at least" in laptop.run("resolve", clash, "--base", seen[0], "--pick", "1", code=Exit.USAGE).stderr
    first = laptop.json("history", clash)["versions"][-1]["version"]
    assert laptop.json("edit", clash, "--base", first, "--text", "late")["in_conflict"]
    bases = [word for version in seen for word in ("--base", version)]
    assert laptop.json("resolve", clash, *bases, "--text", "merged")["in_conflict"]
    versions = laptop.json("conflicts")["conflicts"][0]["versions"]
    assert {one["markdown"] for one in versions} == {"late", "merged"}


TOO_LONG = 'head -c 1100000 /dev/zero | tr "\\0" a > $1'


def test_a_text_that_is_too_long_is_kept_or_made_shorter(laptop: Device, editor: Editor):
    editor(TOO_LONG, "echo shorter > $1", TOO_LONG)
    result = laptop.run("new", "--tag", "a b", stdin="y\n")
    assert "cannot be written" in result.stderr and "Open the editor again?" in result.stderr
    assert laptop.titles() == ["shorter"]
    assert of(laptop.unsaved) == of(editor.folder) == []
    said = laptop.run("new", "--tag", "a b", stdin="n\n", code=Exit.FAILED).stderr
    assert of(laptop.unsaved) == ["a" * 1_100_000]
    file = next(laptop.unsaved.iterdir())
    assert f"anabranch notes new --tag 'a b' --data {laptop.folder} < {file}\n" in said
    assert of(editor.folder) == []
    assert f"1 unsaved in {laptop.unsaved}" in laptop.run("list").stderr


def test_a_merge_that_still_has_marks_is_kept_with_how_to_go_on(laptop: Device, editor: Editor, clash: str):
    editor("touch $1", "echo work >> $1")
    said = laptop.run("resolve", clash, stdin="e\ny\nn\n", code=Exit.FAILED).stderr
    assert "still has conflict marks" in said
    (text,) = of(laptop.unsaved)
    assert "work" in text
    command = re.search(r"anabranch notes (resolve .* --text -) --data", said)
    assert command is not None
    again = command.group(1).split()
    assert "still has conflict marks" in laptop.run(*again, stdin=text, code=Exit.FAILED).stderr
    laptop.run(*again, stdin="merged")
    assert laptop.titles() == ["merged"]


def test_a_merge_that_somebody_else_made_first_is_kept(laptop: Device, editor: Editor, clash: str):
    other = f"{sys.executable} -m anabranch notes resolve {clash} --pick 1 --data {laptop.folder}"
    editor(f"{other} && echo merged > $1")
    said = laptop.run("resolve", clash, stdin="e\n", code=Exit.FAILED).stderr
    assert "settled elsewhere meanwhile" in said and f"notes edit {clash[:8]}" in said
    assert of(laptop.unsaved) == ["merged\n"]


@pytest.mark.parametrize("error", [FileFailed("disk full"), OSError(28, "No space left"), RuntimeError("a mistake")])
def test_whatever_fails_after_the_editor_keeps_the_text(
    laptop: Device, editor: Editor, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    async def fails(*arguments: Any, **named: Any) -> str:
        raise error

    note = laptop.new("before")
    monkeypatch.setattr(Replica, "put", fails)
    editor("echo hours of work > $1")
    said = laptop.run("edit", note, stdin="n\n", code=Exit.FAILED).stderr
    assert str(error) in said and f"anabranch notes edit {note[:8]} --base" in said
    assert of(laptop.unsaved) == ["hours of work\n"]
    assert of(editor.folder) == []


def test_an_editor_that_fails_or_writes_no_utf8_loses_nothing(laptop: Device, editor: Editor):
    editor("echo half > $1; exit 3", "printf '\\377' > $1", "exit 3")
    assert "ended with 3" in laptop.run("new", code=Exit.FAILED).stderr
    assert of(laptop.unsaved) == ["half\n"]
    assert "not UTF-8" in laptop.run("new", stdin="n\n", code=Exit.FAILED).stderr
    assert sorted(file.read_bytes() for file in laptop.unsaved.iterdir()) == [b"half\n", b"\xff"]
    assert "unsaved" not in laptop.run("new", code=Exit.FAILED).stderr  # where nothing was written, nothing is kept


def test_a_text_that_cannot_be_kept_stays_where_it_was_written(laptop: Device, editor: Editor):
    laptop.unsaved.write_text("in the way")
    editor("echo work > $1; exit 1")
    said = laptop.run("new", code=Exit.FAILED).stderr
    (folder,) = editor.folder.iterdir()
    assert f"still in {folder}" in said
    assert of(folder) == ["work\n"]


@pytest.mark.parametrize("memory", [True, False])
def test_the_editor_works_where_nobody_else_can_look(
    laptop: Device, editor: Editor, monkeypatch: pytest.MonkeyPatch, memory: bool
):
    if not memory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/not/there")
    editor('folder=$(dirname $1); stat -c "%a %n" $folder > seen; echo x > $folder/note.md~; echo text > $1')
    laptop.folder.chmod(0o755)
    laptop.run("new")
    mode, _, where = Path("seen").read_text().strip().partition(" ")
    assert mode == "700"
    assert Path(where).parent == (editor.folder if memory else laptop.folder)
    assert not Path(where).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_with_the_editor_and_loses_nothing(
    laptop: Device, editor: Editor, run_in_background: Callable[..., Background], number: signal.Signals
):
    editor("echo typed > $1; printf swap > $(dirname $1)/.note.md.swp; echo open >&2; exec sleep 30")
    running = run_in_background("notes", "new", "--data", str(laptop.folder), terminal=True)
    running.wait_for("open")
    running.process.send_signal(number)
    assert running.process.wait(10) == 128 + number
    assert of(laptop.unsaved) == ["swap", "typed\n"] or of(laptop.unsaved) == ["typed\n", "swap"]
    assert of(editor.folder) == []
    assert f"anabranch notes new --data {laptop.folder} < {laptop.unsaved}" in running.all_said()


def test_ctrl_c_belongs_to_the_editor_but_ends_a_question(
    laptop: Device, editor: Editor, clash: str, run_in_background: Callable[..., Background]
):
    editor("trap 'echo typed > $1; exit 0' INT; echo open >&2; while true; do sleep 0.1; done")
    running = run_in_background("notes", "new", "--data", str(laptop.folder), terminal=True)
    running.wait_for("open")
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.process.wait(30) == 0
    assert "typed" in laptop.titles()
    asking = run_in_background("notes", "resolve", clash, "--data", str(laptop.folder), terminal=True)
    asking.wait_for("q leaves it")
    assert asking.interrupt() == Exit.INTERRUPTED
