"""Export and import: streams of events through the command line, whatever they are."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from histories import operation
from stand_ins import AUTHOR, HISTORY, START, answer, held, jsonl

from anabranch.cli.shell import Exit
from anabranch.core.nostr import serialise
from anabranch.store.contract import Offer
from anabranch.store.sqlite import SqliteStore


def test_export_is_events_on_stdout_and_nothing_else(run: Callable[..., Result], data: str) -> None:
    result = run("export", "--data", data)
    assert result.stdout_bytes == jsonl(HISTORY)
    assert result.stderr == f"exported {len(HISTORY)} events\n"


def test_export_ends_with_an_object_on_stderr_where_it_is_asked_for(run: Callable[..., Result], data: str) -> None:
    result = run("export", "--json", "--data", data)
    told = json.loads(result.stderr)
    assert result.stdout_bytes == jsonl(HISTORY)
    assert (told["exported"], told["floor"], told["tip"]) == (len(HISTORY), 1, len(HISTORY))


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--kinds", "1"], 1),
        (["--kinds", "1,42061"], len(HISTORY)),
        (["--authors", AUTHOR.pubkey], len(HISTORY)),
        (["--authors", "00" * 32], 0),
        (["--since", str(START + 41)], 2),
        (["--until", "2023-11-14T22:13:25"], 5),
        (["--heads-only"], 4),
    ],
)
def test_export_takes_what_its_options_say(
    run: Callable[..., Result], data: str, options: list[str], count: int
) -> None:
    assert run("export", "--data", data, *options).stdout_bytes.count(b"\n") == count


@pytest.mark.parametrize("options", [["--kinds", "x"], ["--authors", "npub1"], ["--since", "yesterday"]])
def test_export_refuses_options_that_say_nothing(run: Callable[..., Result], data: str, options: list[str]) -> None:
    assert run("export", "--data", data, *options).exit_code == Exit.USAGE


def test_export_runs_beside_a_node_and_ends_quietly_with_its_reader(data: str) -> None:
    with held(data, "http://127.0.0.1:1"):
        process = subprocess.Popen(
            [sys.executable, "-m", "anabranch", "export", "--data", data],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == Exit.FAILED
    assert b"Traceback" not in errors
    assert b"Exception" not in errors


def test_import_counts_what_became_of_every_line(run: Callable[..., Result], tmp_path: Path) -> None:
    forged = serialise(HISTORY[0]).replace(HISTORY[0].sig.encode(), HISTORY[1].sig.encode())
    oversize = b'{"content":"' + b"x" * 200_000 + b'"}'
    lines = [*map(serialise, HISTORY[:5]), serialise(HISTORY[0]), b"{not json", forged, oversize]
    Path("in.jsonl").write_bytes(b"\n".join(lines))
    result = run("import", "in.jsonl", "--json", "--rejected", "bad.jsonl", "--data", "store")
    report = answer(result)
    assert set(report) >= {
        *("lines", "stored", "duplicate", "superseded", "rejected", "rejections", "broken", "tip", "seconds")
    }
    counts = (report["lines"], report["stored"], report["duplicate"], report["superseded"], report["rejected"])
    assert counts == (9, 5, 1, 0, 3)
    assert report["tip"] == 5
    assert [rejection["line"] for rejection in report["rejections"]] == [7, 8, 9]
    assert "line 8: signature does not hold" in result.stderr
    written = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [(entry["line"], entry["text"] and entry["text"][:9]) for entry in written] == [
        (7, "{not json"),
        (8, '{"id":"' + HISTORY[0].id[:2]),
        (9, None),
    ]


def test_import_names_the_first_twenty_rejected_lines_and_counts_the_rest(run: Callable[..., Result]) -> None:
    result = run("import", "-", "--data", "store", stdin=b"{}\n" * 30)
    assert result.exit_code == 0
    assert len(re.findall(r"^line \d+: ", result.stderr, re.M)) == 20
    assert "10 more rejected lines" in result.stderr


def test_import_reads_gzip_from_a_file_and_from_stdin(run: Callable[..., Result]) -> None:
    packed = gzip.compress(jsonl(HISTORY))
    Path("in.jsonl.gz").write_bytes(packed)
    assert answer(run("import", "in.jsonl.gz", "--json", "--data", "store"))["stored"] == len(HISTORY)
    again = answer(run("import", "-", "--json", "--data", "store", stdin=packed))
    assert (again["stored"], again["duplicate"]) == (0, len(HISTORY))


def test_an_import_opens_a_new_epoch_only_when_it_brings_something_to_a_log_that_has_something(
    run: Callable[..., Result],
) -> None:
    def imported(content: bytes, *options: str) -> tuple[str, bool]:
        report = answer(run("import", "-", "--json", "--data", "store", *options, stdin=content))
        return report["epoch"], report["epoch_is_new"]

    first, is_new = imported(jsonl(HISTORY[:2]))
    assert not is_new
    assert imported(jsonl(HISTORY[:2])) == imported(b"{}\n") == imported(b"") == (first, False)
    assert imported(jsonl(HISTORY[:3]), "--keep-epoch") == (first, False)
    second, is_new = imported(jsonl(HISTORY))
    assert is_new and second != first
    with closing(SqliteStore.open(Path("store"))) as store:  # it is not taken for a restore
        log = store.log()
        assert (log.epoch, store.renewed) == (second, False)
        assert (log.floor, log.tip) == (1, len(HISTORY)), "positions go on, and all of them can be replayed"


def test_an_import_that_is_killed_after_its_first_group_is_not_taken_for_a_restore(run: Callable[..., Result]) -> None:
    run("import", "-", "--data", "store", stdin=jsonl(HISTORY[:2]))
    store = SqliteStore.open(Path("store"))
    epoch = store.epoch_of_an_import()
    store.writer.append([Offer(operation(HISTORY[0]))], 1, epoch=epoch)
    assert store.writer.log().epoch != epoch, "nothing was stored"
    store.writer.append([Offer(operation(HISTORY[3]))], 1, epoch=epoch)
    store.writer.close()
    os.close(store._lock)  # as a kill does
    with closing(SqliteStore.open(Path("store"))) as again:
        assert (again.log().epoch, again.renewed) == (epoch, False)


def test_a_torn_input_is_1_and_what_came_before_is_stored(run: Callable[..., Result]) -> None:
    report = answer(
        run("import", "-", "--json", "--data", "store", stdin=gzip.compress(jsonl(HISTORY))[:-200]), Exit.FAILED
    )
    assert report["broken"]
    assert report["tip"] == report["stored"]


def test_export_then_import_gives_equal_heads(run: Callable[..., Result], data: str) -> None:
    exported = run("export", "--data", data).stdout_bytes
    run("import", "-", "--data", "copy", stdin=exported)
    heads = [run("export", "--heads-only", "--data", folder).stdout_bytes for folder in (data, "copy")]
    assert heads[0] == heads[1]


def test_import_where_a_node_is_says_what_to_do(run: Callable[..., Result], data: str) -> None:
    with held(data, "http://127.0.0.1:7000"):
        result = run("import", "-", "--data", data, stdin=b"")
    assert (result.exit_code, result.stdout) == (Exit.IN_USE, "")
    assert "publish over the wire, or stop the node" in result.stderr


def test_an_import_that_is_killed_leaves_a_sound_store_and_goes_on(run: Callable[..., Result], tmp_path: Path) -> None:
    events = [AUTHOR.sign(1, [], f"note {n}", START + n) for n in range(2_500)]
    Path("many.jsonl").write_bytes(jsonl(events))
    command = [sys.executable, "-m", "anabranch", "import", "-", "--data", "store"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(jsonl(events[:2_200]))
    process.stdin.flush()
    deadline = 300
    while deadline and not (stored := _tip("store")):
        deadline -= 1
        threading.Event().wait(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    assert stored in (1_000, 2_000)
    report = answer(run("import", "many.jsonl", "--json", "--data", "store"))
    assert report["stored"] + report["duplicate"] == len(events)
    assert report["duplicate"] >= stored
    assert answer(run("verify", "--json", "--data", "store"))["sound"]


def _tip(folder: str) -> int:
    try:
        return SqliteStore.inspect(Path(folder)).log().tip
    except Exception:
        return 0
