"""`anabranch notes` when something is wrong: it is said in words, with what to do, and nothing is in the way of it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from notes_devices import Background, Device
from processes import Node

from anabranch.cli import main, notes_view
from anabranch.cli.notes_folder import NotesShell
from anabranch.cli.notes_words import of_relay
from anabranch.cli.shell import Exit
from anabranch.client import DocumentVersion
from anabranch.core import nip19, notes

OTHER = nip19.encode("nsec", b"\x11" * 32)
LARGE = "# Large\n" + "x" * 70_000


# --- a key or a database that is lost ---


def test_a_lost_key_is_brought_back_and_no_wrong_one_gets_in_its_way(laptop: Device):
    laptop.new("precious")
    key = laptop.folder / "key"
    right = key.read_text()
    key.unlink()
    for command in (["list"], ["sync"], ["new", "--text", "x"]):
        assert "notes init --import" in laptop.run(*command, code=Exit.FAILED).stderr
    assert "notes init --import" in laptop.run("init", code=Exit.USAGE).stderr
    assert "belongs to" in laptop.run("init", "--import", stdin=OTHER, code=Exit.USAGE).stderr
    assert not key.exists()
    laptop.run("init", "--import", stdin=right)
    assert laptop.titles() == ["precious"]


def test_a_lost_key_of_the_other_family_is_brought_back_without_naming_it(tmp_path: Path):
    device = Device(tmp_path / "x")
    device.run("init", "--family", "revision")
    right = (device.folder / "key").read_text()
    (device.folder / "key").unlink()
    assert device.json("init", "--import", stdin=right)["family"] == "revision"


def test_a_failed_init_leaves_nothing(tmp_path: Path):
    device = Device(tmp_path / "x")
    assert "no relay address" in device.run("init", "--relay", "http://foo", code=Exit.USAGE).stderr
    assert not device.folder.exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.db").mkdir()  # in the way
    Device(tmp_path / "full").run("init", "--import", stdin=OTHER, code=Exit.FAILED)
    assert not (tmp_path / "full" / "key").exists()


@pytest.mark.parametrize("left", [b"", None])
def test_a_database_that_is_gone_is_said_and_made_anew_with_the_key_that_is_there(laptop: Device, left: bytes | None):
    key, file = laptop.folder / "key", laptop.folder / "notes.db"
    right = key.read_text()
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    said = laptop.run("list", code=Exit.FAILED).stderr
    assert ("0 bytes" if left is not None else "not there") in said and "notes init" in said
    assert "another key" in laptop.run("init", "--import", stdin=OTHER, code=Exit.USAGE).stderr
    assert "is used" in laptop.run("init").stderr
    assert key.read_text() == right
    assert laptop.titles() == []


def test_a_damaged_database_is_said_with_what_to_do(laptop: Device):
    for number in range(6):
        laptop.new(f"note {number}")
    file = laptop.folder / "notes.db"
    whole = file.read_bytes()
    for at in range(4096, len(whole), 4096):  # one page after the other: met when it is opened, or when it is read
        file.write_bytes(whole[:at] + b"\xa5" * 4096 + whole[at + 4096 :])
        result = CliRunner().invoke(main, ["notes", "list", "--data", str(laptop.folder)])
        assert "unexpected" not in result.stderr
        assert result.exit_code == 0 or "is damaged" in result.stderr, result.stderr
    file.write_bytes(b"no database at all")
    assert "is damaged" in laptop.run("list", code=Exit.FAILED).stderr


# --- notes that no relay takes ---


@pytest.mark.parametrize("family, fits", [("snapshot", 64_000), ("revision", 39_000)])
def test_a_text_that_relays_do_not_take_is_warned_of(tmp_path: Path, family: str, fits: int):
    device = Device(tmp_path / "x")
    device.run("init", "--family", family)
    assert device.run("new", "--text", "x" * fits).stderr == ""
    said = device.run("new", stdin=LARGE)
    assert "more than relays take by default" in said.stderr
    note = said.stdout.strip()
    assert "more than relays take" in device.run("edit", note, stdin=LARGE + "x").stderr
    assert device.run("edit", note, "--text", "short").stderr == ""


def test_a_refused_note_is_named_with_its_reason_until_it_is_shortened(two_devices: tuple[Device, Device]):
    laptop, _ = two_devices
    note = laptop.run("new", stdin=LARGE).stdout.strip()
    laptop.new("small")
    said = laptop.run("sync", code=Exit.FAILED)
    assert "has all but 1 note that it refuses: 1 sent" in said.stdout
    assert "in step" not in said.stdout
    assert re.search(rf"^  {note[:8]}  Large: invalid: .* longer than", said.stdout, re.M)
    assert "--retry-refused" in said.stderr
    (row,) = laptop.json("sync", code=Exit.FAILED)["relays"]
    assert [(one["title"], one["current"]) for one in row["refused"]] == [("Large", True)]
    listed = {one["title"]: one["refused_by"] for one in laptop.json("list")["notes"]}
    assert listed == {"Large": [row["url"]], "small": []}
    assert re.search(r"Large  refused$", laptop.run("list").stdout, re.M)
    assert f"  {note[:8]}  Large: invalid" in laptop.run("relay", "list").stdout
    laptop.run("edit", note, "--text", "short")
    assert "in step: 1 sent" in laptop.run("sync").stdout
    assert "refused" not in laptop.run("list").stdout + laptop.run("relay", "list").stdout


def test_a_sync_that_brings_nothing_to_an_empty_folder_hints_at_the_family(tmp_path: Path, node: Node):
    laptop, phone = Device(tmp_path / "laptop"), Device(tmp_path / "phone")
    laptop.run("init", "--family", "revision", "--relay", node.url)
    laptop.new("here")
    assert "--family" not in laptop.run("sync").stderr
    phone.run("init", "--import", "--relay", node.url, stdin=(laptop.folder / "key").read_text())
    assert "--family snapshot" in phone.run("sync").stderr


# --- what is shown ---


@pytest.mark.parametrize("text", ["a", "a\n", "a\r\n\n\n", "\n  a\t\x1b[31m ü"])
def test_a_note_goes_into_a_pipe_byte_for_byte(laptop: Device, text: str):
    note = laptop.run("new", stdin=text).stdout.strip()
    assert laptop.run("show", note).stdout_bytes == text.encode()
    assert laptop.run("show", note, "--version", "1").stdout_bytes == text.encode()


def test_nothing_in_a_note_commands_the_terminal(laptop: Device, capsys: pytest.CaptureFixture[str]):
    laptop.new("# Red\x1b[31m\x07\x9b\u202e\nx")
    assert "Red␛[31m␇<U+009B><U+202E>" in laptop.run("list").stdout
    notes_view.print_markdown("one\x1b]0;gone\x07\n\ttwo\r", terminal=True)
    shown = capsys.readouterr().out
    assert "one␛]0;gone␇" in shown and "two␍" in shown


def version(id: str, text: str, mtime: int, clock: dict[str, int]) -> DocumentVersion:
    return DocumentVersion(id * 64, False, mtime, True, True, notes.new(text, "d", mtime), None, clock)


def test_history_compares_with_what_a_version_was_written_upon():
    first = version("1", "a", 1, {"x": 1})
    left, right = version("2", "a\nb", 2, {"x": 2}), version("3", "a\nc\nd", 3, {"x": 1, "y": 1})
    kept = [right, left, first]
    assert notes_view.bases_of(kept, {}) == {right.id: first, left.id: first}
    rows = notes_view.history_rows(kept, notes_view.bases_of(kept, {})).splitlines()
    assert [re.findall(r"\+\d −\d", row) for row in rows] == [["+2 −0"], ["+1 −0"], []]


def test_history_compares_revisions_with_their_parents(tmp_path: Path):
    device = Device(tmp_path / "x")
    device.run("init", "--family", "revision")
    note = device.new("a")
    first = device.json("history", note)["versions"][0]["version"]
    device.run("edit", note, "--text", "a\nb")
    device.run("edit", note, "--text", "a\nc\nd", "--base", first)
    rows = device.run("history", note).stdout.splitlines()
    assert sorted(found for row in rows for found in re.findall(r"\+\d −\d", row)) == ["+1 −0", "+2 −0"]


def test_follow_tells_once_and_with_titles_what_others_and_other_commands_wrote(
    two_devices: tuple[Device, Device], node: Node, run_in_background: Callable[..., Background]
):
    laptop, phone = two_devices
    phone.run("relay", "add", "ws://127.0.0.1:9")
    following = run_in_background("notes", "sync", "--follow", "--data", str(phone.folder))
    following.wait_for(f"{node.url}  live")
    note = laptop.new("news")
    laptop.run("sync")
    following.wait_for(f"{note[:8]}  new: news  ({node.url})")
    phone.run("edit", note, "--text", "old news")
    following.wait_for(f"{note[:8]}  changed: old news  (another command)")
    phone.run("new", stdin=LARGE)
    following.wait_for("Large: invalid: ")
    laptop.run("sync")
    laptop.run("delete", note)
    laptop.run("sync")
    following.wait_for(f"{note[:8]}  deleted: old news  ({node.url})")
    following.interrupt()
    lines = following.all_said().splitlines()
    assert len(lines) == len(set(lines))
    assert sum("127.0.0.1:9" in line for line in lines) == 1


# --- relays, in words ---


@pytest.mark.parametrize(
    "said, words",
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "ws:// instead of wss://"),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)",
            "not trusted (self-signed certificate);",
        ),
        ("[SSL: TLSV1_ALERT_INTERNAL_ERROR] tlsv1 alert (_ssl.c:1)", "no secure connection"),
        ("server rejected WebSocket connection: HTTP 404", "no relay (HTTP 404); check the address"),
        ("server rejected WebSocket connection: HTTP 503", "down or busy (HTTP 503); try again later"),
        ("server rejected WebSocket connection: HTTP 403", "ask who runs it"),
        ("did not receive a valid HTTP response", "wss:// instead of ws://"),
        ("nothing answers at this address", "nothing answers at this address"),
        ("\x1b[2J", "␛[2J"),
    ],
)
def test_what_libraries_say_becomes_words(said: str, words: str):
    told = of_relay(NotesShell(None, None, False, False), "wss://relay.example/", said)
    assert words in told
    assert "_ssl.c" not in told and "WebSocket" not in told


def test_a_relay_that_wants_an_access_key_says_how_to_give_it(laptop: Device, start_node: Callable[..., Node]):
    node = start_node(env={"PRIVATE": "true"}, admin=True)
    node.admin("POST", "keys", {"label": "mine"})
    laptop.run("relay", "add", node.url)
    said = laptop.run("sync", code=Exit.FAILED).stdout
    assert f"anabranch notes relay add {node.url} --data {laptop.folder} --access-key" in said
