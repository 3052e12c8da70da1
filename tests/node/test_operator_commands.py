"""The operator's contract from outside: export and import, verify, and how a node starts and ends."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from authors import EPOCH, Author, ids, snapshot, versions
from processes import ANABRANCH, Node
from sockets import RelayClient

from anabranch.store.held import read_holder

FULL = Path("/dev/full")


async def test_an_export_can_be_imported_elsewhere(
    start_node: Callable[..., Node], connect: Callable, author: Author, tmp_path: Path
) -> None:
    one = start_node()
    client: RelayClient = await connect(one)
    events = [*versions(author, "note", 5), author.event(1, "plain é😀\u0000", created_at=EPOCH)]
    await client.store(*events)
    feed = await client.tail(author)
    assert one.stop() == 0
    exported = one.cli("export")
    assert exported.returncode == 0
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert sorted(ids(lines)) == sorted(ids(events))
    assert all(line in events for line in lines)
    file = tmp_path / "events.jsonl"
    file.write_text(exported.stdout)
    other = start_node()
    assert other.stop() == 0
    for _ in range(2):
        done = other.cli("import", str(file), "--json")
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)
    other.start()
    assert (await (await connect(other)).tail(author)).ids == feed.ids


async def test_an_import_takes_what_is_proven_and_says_what_was_not(
    start_node: Callable[..., Node], connect: Callable, author: Author, tmp_path: Path
) -> None:
    own = start_node()
    assert own.stop() == 0
    good = snapshot(author, "note", {"x": 1})
    forged = {**snapshot(author, "other", {"x": 1}), "content": "forged"}
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(["", json.dumps(forged), "not json", "{}", "[]", json.dumps(good), '"\\ud800"', ""]))
    done = own.cli("import", str(file), "--json")
    json.loads(done.stdout)
    own.verify()
    own.start()
    assert (await (await connect(own)).req({"authors": [author.pubkey]})).events == [good]


async def test_verify_finds_a_payload_that_was_tampered_with(
    start_node: Callable[..., Node], connect: Callable, author: Author
) -> None:
    own = start_node()
    await (await connect(own)).store(*versions(author, "note", 5, content="UNMISTAKABLE"))
    assert own.stop() == 0
    own.verify()
    changed = 0
    for file in own.data.rglob("*"):
        if not file.is_file() or file.read_bytes()[:15] != b"SQLite format 3":
            continue
        with sqlite3.connect(file) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
                for column in columns:
                    matching = f"WHERE instr(CAST(\"{column}\" AS TEXT), 'UNMISTAKABLE') > 0"
                    changed += database.execute(
                        f'UPDATE "{table}" SET "{column}" = CAST(replace(CAST("{column}" AS TEXT), '
                        f"'UNMISTAKABLE', 'UNMISTAKEABLE') AS BLOB) {matching}"
                    ).rowcount
    assert changed, "no payload was found to tamper with: this test must learn where they are"
    answer = own.cli("verify", "--json")
    assert answer.returncode not in (0, 2)
    assert json.loads(answer.stdout)


def test_an_unknown_setting_is_an_error_that_names_the_nearest(tmp_path: Path, start_node: Callable[..., Node]) -> None:
    own = Node(tmp_path / "never", env={"PRIVAT": "true"})
    answer = subprocess.run(
        [ANABRANCH, "serve", "--port", str(own.port), "--data", str(own.data)],
        env=own.env,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert answer.returncode not in (0, None)
    assert "ANABRANCH_PRIVATE" in answer.stderr and "Traceback" not in answer.stderr


def words_of_a_node_that_does_not_start(own: Node, port: int, host: str = "127.0.0.1") -> str:
    command = [ANABRANCH, "serve", "--host", host, "--port", str(port), "--data", str(own.data)]
    answer = subprocess.run(command, env=own.env, capture_output=True, text=True, timeout=20, check=False)
    assert answer.returncode != 0 and "Traceback" not in answer.stderr
    return answer.stderr


def test_a_port_that_is_taken_is_told_in_one_line(node: Node, tmp_path: Path) -> None:
    words = words_of_a_node_that_does_not_start(Node(tmp_path / "second"), node.port)
    assert str(node.port) in words and "another port goes with --port" in words


def test_an_address_that_is_none_is_told_with_what_to_change(tmp_path: Path) -> None:
    own = Node(tmp_path / "nowhere")
    assert "another address goes with --host" in words_of_a_node_that_does_not_start(own, own.port, "256.1.1.1")


def test_two_nodes_cannot_share_one_store(node: Node) -> None:
    second = Node(node.data)
    assert "in use" in words_of_a_node_that_does_not_start(second, second.port)


def test_an_idle_node_stops_at_once_with_zero(start_node: Callable[..., Node]) -> None:
    own = start_node()
    assert own.stop() == 0
    own.verify()


def test_ctrl_c_stops_a_node_as_cleanly(start_node: Callable[..., Node]) -> None:
    own = start_node()
    assert own.process is not None
    own.process.send_signal(signal.SIGINT)
    assert own.process.wait(10) == 0
    assert "everything acknowledged is on disk" in own.log_tail()
    own.verify()


async def test_a_backup_is_finished_beside_a_node_that_is_being_written_to(
    start_node: Callable[..., Node], connect: Callable, author: Author, tmp_path: Path
) -> None:
    own, copy = start_node(), tmp_path / "copy.db"
    client: RelayClient = await connect(own)
    large = [snapshot(author, f"large {n}", {"x": 1}, content="x" * 90_000) for n in range(200)]
    await client.store(*large)
    done = asyncio.Event()

    async def write(number: int) -> int:
        writer, count = await connect(own), 0
        while not done.is_set():
            await writer.store(snapshot(author, f"{number}-{count}", {"x": 1}))
            count += 1
        return count

    writing = [asyncio.create_task(write(number)) for number in range(4)]
    try:
        made = await asyncio.to_thread(own.cli, "backup", str(copy), "--json", timeout=6)
    finally:
        done.set()
        counts = await asyncio.gather(*writing)
    assert min(counts) > 10
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["tip"] >= len(large)
    restored = Node(tmp_path / "restored")
    assert restored.cli("restore", str(copy)).returncode == 0
    restored.verify()
    assert own.alive


def test_serve_says_in_one_object_where_it_listens_or_why_it_does_not(tmp_path: Path) -> None:
    command = [ANABRANCH, "serve", "--json", "--port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["url"].startswith("ws://127.0.0.1:") and told["pid"] == process.pid and told["tip"] == 0
        second = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert (second.returncode, json.loads(second.stdout)["exit_code"]) == (4, 4)
        process.terminate()
        assert process.stdout.read() == ""
    assert process.returncode == 0


def test_a_node_whose_stderr_cannot_be_written_serves_and_stops_all_the_same(tmp_path: Path) -> None:
    command = [ANABRANCH, "serve", "--json", "--port", "0", "--data", str(tmp_path / "data")]
    quiet = [part for part in command if part != "--json"]
    with FULL.open("w") as full:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, text=True) as process:
            assert process.stdout is not None
            told = process.stdout.readline()
            second = subprocess.run(quiet, stdout=full, stderr=full, timeout=30)
            process.terminate()
        assert (json.loads(told)["pid"], second.returncode, process.returncode) == (process.pid, 4, 0)
        with subprocess.Popen(quiet, stdout=full, stderr=full) as process:
            while (holder := read_holder(tmp_path / "data")).pid != process.pid or not holder.url:
                assert process.poll() is None
                time.sleep(0.05)
            process.terminate()
        assert process.returncode == 0


def test_an_answer_that_cannot_be_written_is_told_in_one_line(start_node: Callable[..., Node]) -> None:
    own = start_node()
    for options in ([], ["--json"]):
        with FULL.open("w") as full:
            command = [ANABRANCH, "status", "--data", str(own.data), *options]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
        assert done.returncode == 1
        assert done.stderr == "anabranch: the answer could not be written to stdout: No space left on device\n"
