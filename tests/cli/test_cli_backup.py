"""A backup is a store of one moment; a restore is the same stream in a new epoch, or nothing at all."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from click.testing import Result
from stand_ins import AUTHOR, HISTORY, START, answer, held, jsonl

from anabranch.cli.shell import Exit


def test_a_backup_is_taken_beside_a_node_and_restored_as_a_new_epoch(run: Callable[..., Result], data: str) -> None:
    with held(data, "http://127.0.0.1:1"):
        made = answer(run("backup", "copy.db", "--json", "--data", data))
    assert made.keys() == {"file", "bytes", "stream", "epoch", "tip"}
    assert sorted(path.name for path in Path().iterdir() if path.name.startswith("copy")) == ["copy.db"]
    restored = answer(run("restore", "copy.db", "--json", "--data", "other"))
    assert restored.keys() == {"data", "stream", "epoch", "floor", "tip"}
    assert (restored["stream"], restored["tip"]) == (made["stream"], len(HISTORY) + 1)
    assert restored["epoch"] != made["epoch"]
    status = answer(run("status", "--json", "--data", "other"))
    assert status["epoch"] == restored["epoch"]
    assert answer(run("verify", "--json", "--data", "other"))["sound"]
    assert run("export", "--data", "other").stdout_bytes == jsonl(HISTORY)


def test_a_backup_replaces_a_file_only_when_told_to(run: Callable[..., Result], data: str) -> None:
    Path("copy.db").write_text("precious")
    assert run("backup", "copy.db", "--data", data).exit_code == Exit.FAILED
    assert Path("copy.db").read_text() == "precious"
    assert run("backup", "copy.db", "--force", "--data", data).exit_code == 0


def test_a_restore_replaces_a_store_only_when_told_to(run: Callable[..., Result], data: str) -> None:
    run("backup", "copy.db", "--data", data)
    late = AUTHOR.sign(1, [], "after the backup", START + 60)
    run("import", "-", "--data", data, stdin=jsonl([late]))
    before = answer(run("status", "--json", "--data", data))
    assert run("restore", "copy.db", "--data", data).exit_code == Exit.FAILED
    assert answer(run("status", "--json", "--data", data)) == before
    restored = answer(run("restore", "copy.db", "--force", "--json", "--data", data))
    assert restored["tip"] > before["tip"], "no old checkpoint fits"
    assert restored["epoch"] != before["epoch"]
    assert answer(run("verify", "--json", "--data", data))["sound"]
    # What opens it next finds the epoch as the restore left it.
    with held(data) as store:
        assert store.log().epoch == restored["epoch"]
        assert not store.renewed


def test_a_restore_under_a_running_node_is_4(run: Callable[..., Result], data: str) -> None:
    run("backup", "copy.db", "--data", data)
    with held(data, "http://127.0.0.1:1"):
        assert run("restore", "copy.db", "--force", "--data", data).exit_code == Exit.IN_USE
    assert answer(run("verify", "--json", "--data", data))["sound"]


@pytest.mark.parametrize("damage", ["no database", "another database", "torn"])
def test_a_restore_of_what_is_no_sound_backup_leaves_the_store_alone(
    run: Callable[..., Result], data: str, damage: str
) -> None:
    file = Path("copy.db")
    if damage == "no database":
        file.write_bytes(b"a poem" * 1000)
    elif damage == "another database":
        apsw.Connection(str(file)).execute("CREATE TABLE poems (line TEXT)")
    else:
        run("backup", "copy.db", "--data", data)
        whole = bytearray(file.read_bytes())
        whole[4096 * 6 : 4096 * 9] = b"\xa5" * 4096 * 3
        file.write_bytes(whole)
    before = answer(run("status", "--json", "--data", data))
    result = run("restore", "copy.db", "--force", "--data", data)
    assert result.exit_code == Exit.FAILED
    assert result.stderr.startswith("anabranch: copy.db is ")
    assert answer(run("status", "--json", "--data", data)) == before
    assert not list(Path(data).glob("*restoring*"))


def test_where_nothing_can_be_written_is_told_in_words(run: Callable[..., Result], data: str) -> None:
    nowhere = run("backup", "no/such/copy.db", "--data", data)
    assert nowhere.stderr == "anabranch: cannot write no/such/copy.db: No such file or directory\n"
    run("backup", "copy.db", "--data", data)
    Path("file").write_text("")
    no_folder = run("restore", "copy.db", "--data", "file")
    assert no_folder.stderr == "anabranch: cannot restore into file: File exists\n"
