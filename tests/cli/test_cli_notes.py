"""`anabranch notes`: what people do with it, and that each step says what happened."""

import re
import stat
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from notes_devices import Background, Device, Editor
from processes import Node

from anabranch.cli import main, notes_view
from anabranch.cli.shell import Exit
from anabranch.client import DocumentVersion
from anabranch.core import nip19, notes

NSEC = nip19.encode("nsec", b"\x11" * 32)


def conflict(laptop: Device, phone: Device) -> str:
    """A note that was edited apart, known on both."""
    note = laptop.new("# List\nmilk\nbread")
    laptop.run("sync")
    phone.run("sync")
    laptop.run("edit", note, "--text", "# List\nmilk\nbread\neggs")
    phone.run("edit", note, "--text", "# List\noat milk\nbread")
    laptop.run("sync")
    phone.run("sync")
    laptop.run("sync")
    return note


# --- one device ---


def test_init_makes_a_key_that_only_its_owner_can_read(laptop: Device):
    key = laptop.folder / "key"
    assert key.read_text().startswith("nsec1")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((laptop.folder / "notes.db").stat().st_mode) == 0o600
    before = key.read_text()
    assert "has notes already" in laptop.run("init", code=Exit.USAGE).stderr
    assert key.read_text() == before


@pytest.mark.parametrize("given", [NSEC, "11" * 32, f"  {NSEC.upper()}\n", "AA" * 32])
def test_init_takes_a_key_of_ones_own(tmp_path: Path, given: str):
    answer = Device(tmp_path / "x").json("init", "--import", stdin=given)
    assert re.fullmatch("[0-9a-f]{64}", answer["pubkey"])
    assert answer["npub"].startswith("npub1")


@pytest.mark.parametrize("given", ["", "nsec1wrong", "0" * 64, "12", NSEC[:-1] + "q"])
def test_what_is_no_key_is_refused_and_nothing_is_made(tmp_path: Path, given: str):
    device = Device(tmp_path / "x")
    assert "no secret key" in device.run("init", "--import", stdin=given, code=Exit.USAGE).stderr
    assert not device.folder.exists()


def test_a_folder_without_notes_says_how_to_begin(tmp_path: Path):
    for command in (["list"], ["new", "--text", "x"], ["sync"], ["show", "a"], ["relay", "list"]):
        assert "anabranch notes init" in Device(tmp_path / "x").run(*command, code=Exit.FAILED).stderr


def test_the_folder_comes_from_the_environment(laptop: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("ANABRANCH_NOTES", str(laptop.folder))
    assert CliRunner().invoke(main, ["notes", "list"]).exit_code == 0
    monkeypatch.delenv("ANABRANCH_NOTES")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert f"no notes in {tmp_path}/share/anabranch/notes;" in CliRunner().invoke(main, ["notes", "list"]).stderr
    monkeypatch.setenv("ANABRANCH_NOTES", str(laptop.folder))
    result = CliRunner().invoke(main, ["config", "check"])  # no setting of a node, and no mistake in one
    assert result.exit_code == 0, result.output


def test_a_note_is_written_listed_shown_edited_and_found(laptop: Device):
    note = laptop.new("# Milk\nand bread")
    assert notes.is_coordinate(note)
    piped = laptop.run("new", stdin="from a pipe\n").stdout.strip()
    assert laptop.titles() == ["from a pipe", "Milk"] or laptop.titles() == ["Milk", "from a pipe"]
    assert laptop.run("show", note[:6].lower()).stdout == "# Milk\nand bread"
    laptop.run("edit", note[:8], "--text", "# Milk\nand honey")
    assert laptop.json("show", note)["markdown"] == "# Milk\nand honey"
    found = laptop.json("list", "--search", "HONEY")["notes"]
    assert [one["id"] for one in found] == [note]
    assert found[0]["payload"]["note_created_at"] < found[0]["payload"]["edited_at"]
    assert piped[:8] in laptop.run("list").stdout
    assert "nothing changed" in laptop.run("edit", note, "--text", "# Milk\nand honey").stderr
    assert len(laptop.json("history", note)["versions"]) == 2


def test_the_editor_is_used_where_there_is_a_terminal(laptop: Device, editor: Editor):
    editor("printf '# Written' > $1", "cp $1 seen; printf '# Edited' > $1", "cp $1 seen2; touch $1", "true")
    note = laptop.run("new").stdout.strip()
    laptop.run("edit", note)
    assert Path("seen").read_text() == "# Written\n"
    assert "nothing changed" in laptop.run("edit", note).stderr  # the newline that editors want is no change
    assert "stays as it was" in laptop.run("edit", note, code=Exit.FAILED).stderr
    assert laptop.titles() == ["Edited"]
    assert len(laptop.json("history", note)["versions"]) == 2


def test_an_empty_note_is_none(laptop: Device):
    assert "empty" in laptop.run("new", "--text", " \n", code=Exit.FAILED).stderr
    assert laptop.titles() == []
    note = laptop.new("text")
    assert f"notes delete {note[:8]}" in laptop.run("edit", note, stdin="", code=Exit.FAILED).stderr
    assert laptop.titles() == ["text"]


def test_a_deleted_note_can_be_brought_back(laptop: Device):
    note = laptop.new("# Precious")
    laptop.run("delete", note[:8])
    assert laptop.titles() == []
    assert "is deleted" in laptop.run("show", note, code=Exit.FAILED).stderr
    assert [one["deleted"] for one in laptop.json("list", "--deleted")["notes"]] == [True]
    rows = laptop.run("history", note).stdout.splitlines()
    assert len(rows) == 2 and "(deleted)" in rows[0] and "Precious" in rows[1]
    laptop.run("restore", note, "2")
    assert laptop.titles() == ["Precious"]


def test_versions_are_named_by_number_or_by_the_beginning_of_their_id(laptop: Device):
    note = laptop.new("one")
    for text in ("two", "three"):
        laptop.run("edit", note, "--text", text)
    versions = laptop.json("history", note)["versions"]
    assert [one["markdown"] for one in versions] == ["three", "two", "one"]
    assert laptop.run("show", note, "--version", "3").stdout == "one"
    assert laptop.run("show", note, "--version", versions[1]["version"][:10]).stdout == "two"
    assert "no version" in laptop.run("show", note, "--version", "zz", code=Exit.FAILED).stderr
    assert "several versions" in laptop.run("show", note, "--version", "", code=Exit.FAILED).stderr
    laptop.run("restore", note, "3")
    assert laptop.titles() == ["one"]


def test_a_beginning_that_fits_several_or_none_is_told(laptop: Device):
    for number in range(20):
        laptop.new(f"note {number}")
    assert "several notes" in laptop.run("show", "", code=Exit.FAILED).stderr
    assert "no note begins with 'zz'" in laptop.run("show", "zz", code=Exit.FAILED).stderr
    failure = laptop.json("show", "zz", code=Exit.FAILED)
    assert failure["exit_code"] == 1


# --- two devices ---


def test_two_devices_come_in_step(two_devices: tuple[Device, Device]):
    laptop, phone = two_devices
    laptop.new("from the laptop")
    phone.new("from the phone")
    answer = laptop.json("sync")
    assert [(one["caught_up"], one["sent"], one["received"]) for one in answer["relays"]] == [(True, 1, 0)]
    assert "in step: 1 sent, 1 received" in phone.run("sync").stdout
    laptop.run("sync")
    assert sorted(laptop.titles()) == sorted(phone.titles()) == ["from the laptop", "from the phone"]
    assert "0 to send" in laptop.run("relay", "list").stdout


def test_a_conflict_is_seen_shown_side_by_side_and_settled_by_picking(two_devices: tuple[Device, Device]):
    laptop, phone = two_devices
    note = conflict(laptop, phone)
    for device in two_devices:
        assert [one["id"] for one in device.json("conflicts")["conflicts"]] == [note]
        assert "conflict" in device.run("list").stdout
    assert "resolve" in phone.run("edit", note, "--text", "x", code=Exit.FAILED).stderr
    assert "resolve" in phone.run("delete", note, code=Exit.FAILED).stderr
    assert "say how" in phone.run("resolve", note, code=Exit.USAGE).stderr
    versions = phone.json("conflicts")["conflicts"][0]["versions"]
    chosen = next(one for one in versions if "eggs" in one["markdown"])
    phone.run("resolve", note, "--pick", chosen["version"][:8])
    phone.run("sync")
    laptop.run("sync")
    for device in two_devices:
        assert device.run("show", note).stdout == "# List\nmilk\nbread\neggs"
        assert device.run("conflicts").stderr == "no conflicts\n"
    assert "not in conflict" in phone.run("resolve", note, "--delete", code=Exit.FAILED).stderr


@pytest.mark.parametrize(
    "how, left", [(["--text", "# Both"], ["Both"]), (["--text", "-"], ["Piped"]), (["--delete"], [])]
)
def test_a_conflict_is_settled_by_a_merged_text_or_by_deleting(
    two_devices: tuple[Device, Device], how: list[str], left: list[str]
):
    laptop, phone = two_devices
    note = conflict(laptop, phone)
    laptop.run("resolve", note, *how, stdin="# Piped")
    laptop.run("sync")
    phone.run("sync")
    assert laptop.titles() == phone.titles() == left


def test_a_person_is_shown_both_and_asked(two_devices: tuple[Device, Device], editor: Editor):
    laptop, phone = two_devices
    note = conflict(laptop, phone)
    editor("cp $1 draft; printf 'List\n=======\noat milk\nbread\neggs\n' > $1")
    result = phone.run("resolve", note, stdin="q\n", code=Exit.FAILED)
    assert re.search(r"^\[1\].*│ \[2\]", result.stderr, re.M)
    assert re.search(r"^(oat milk +│ milk|milk +│ oat milk)$", result.stderr, re.M)
    phone.run("resolve", note, stdin="e\n")
    assert "<<<<<<< " in Path("draft").read_text()
    assert phone.titles() == ["List"]
    assert phone.json("conflicts")["conflicts"] == []


def test_a_relay_that_is_not_there_is_told_and_the_others_are_synced(laptop: Device, node: Node):
    laptop.new("note")
    laptop.run("relay", "add", node.url)
    laptop.run("relay", "add", "ws://127.0.0.1:9")
    answer = laptop.json("sync", code=Exit.FAILED)
    assert [one["caught_up"] for one in answer["relays"]] == [True, False]
    assert answer["relays"][1]["error"] == "nothing answers at this address"
    assert "1 to send" in laptop.run("sync", code=Exit.FAILED).stdout
    laptop.run("relay", "remove", "ws://127.0.0.1:9")
    laptop.run("sync", "--retry-refused")
    assert "no relay address" in laptop.run("relay", "add", "http://x", code=Exit.FAILED).stderr
    assert "not among the relays" in laptop.run("relay", "remove", "ws://x", code=Exit.FAILED).stderr


def test_without_relays_sync_says_what_to_do(laptop: Device):
    assert "relay add" in laptop.run("sync", code=Exit.FAILED).stderr


def test_the_revision_family_works_the_same(tmp_path: Path, node: Node):
    laptop, phone = Device(tmp_path / "laptop"), Device(tmp_path / "phone")
    laptop.run("init", "--family", "revision", "--relay", node.url)
    key = (laptop.folder / "key").read_text()
    phone.run("init", "--import", "--family", "revision", "--relay", node.url, stdin=key)
    note = conflict(laptop, phone)
    phone.run("resolve", note, "--pick", "1")
    phone.run("sync")
    laptop.run("sync")
    assert laptop.titles() == phone.titles() == ["List"]
    assert laptop.json("conflicts")["conflicts"] == []


def test_follow_stays_and_tells_until_it_is_interrupted(
    two_devices: tuple[Device, Device], node: Node, run_in_background: Callable[..., Background]
):
    laptop, phone = two_devices
    following = run_in_background("notes", "sync", "--follow", "--data", str(phone.folder))
    following.wait_for("live")
    note = laptop.new("news")
    laptop.run("sync")
    following.wait_for(f"{note[:8]}  new: news  ({node.url})")
    assert following.interrupt() == Exit.INTERRUPTED
    assert phone.titles() == ["news"]


# --- how it is shown ---


def version(text: str | None, number: int) -> DocumentVersion:
    content = None if text is None else notes.new(text, "d", 1)
    return DocumentVersion(f"{number:064}", text is None, 1, True, number == 1, content)


def test_a_merge_draft_has_what_is_common_once_and_the_rest_between_marks():
    draft = notes_view.merge_draft([version("a\nb\nc", 1), version("a\nB\nc", 2)])
    assert draft == "a\n<<<<<<< 00000000\nb\n=======\nB\n>>>>>>> 00000000\nc\n"
    assert notes_view.has_marks(draft, [version("", 1)])
    assert not notes_view.has_marks("Title\n=======\n<<<<<<< HEAD\n>>>>>>> 12345678\n", [version("", 1)])
    assert notes_view.merge_draft([version("same", 1), version("same", 2)]) == "same\n"
    assert notes_view.merge_draft([version("kept", 1), version(None, 2)]) == "kept\n"
    assert notes_view.merge_draft([version(None, 1), version(None, 2)]) == ""


def test_what_two_versions_share_stands_in_one_line():
    shown = notes_view.side_by_side([version("a\nb\nc", 1), version("a\nx\ny\nb\nc\nd", 2)]).splitlines()[2:]
    columns = [tuple(part.strip() for part in click.unstyle(line).split("│")) for line in shown]
    assert columns == [("a", "a"), ("", "x"), ("", "y"), ("b", "b"), ("c", "c"), ("", "d")]
    three = [version("a\nb", 1), version("b", 2), version("a\nb\nc", 3)]
    columns = [
        tuple(part.strip() for part in click.unstyle(line).split("│"))
        for line in notes_view.side_by_side(three).splitlines()[2:]
    ]
    assert columns == [("a", "", "a"), ("b", "b", "b"), ("", "", "c")]


def test_columns_show_a_deletion_and_more_than_three_versions_go_below_each_other():
    assert "(deleted)" in notes_view.side_by_side([version("kept", 1), version(None, 2)])
    many = notes_view.side_by_side([version(f"text {number}", number) for number in range(1, 6)])
    assert "│" not in many
    assert all(f"text {number}" in many for number in range(1, 6))
