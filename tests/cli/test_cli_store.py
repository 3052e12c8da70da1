"""Status, compact and verify: what is in a store, what goes, what is wrong; beside a node and without."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from click.testing import Result
from stand_ins import DOCS, HISTORY, TOKEN, admin_api, answer, held

from anabranch.cli.shell import Exit
from anabranch.store.runtime import RETENTION, RuntimeRetention
from anabranch.store.sqlite import DATABASE


def test_status_says_what_is_in_the_store(run: Callable[..., Result], data: str) -> None:
    status = answer(run("status", "--json", "--data", data))
    assert set(status) >= {
        *("data", "stream", "epoch", "floor", "tip", "running", "holder", "statistics", "retention", "replay_window"),
    }
    assert (status["floor"], status["tip"]) == (1, len(HISTORY))
    assert (status["running"], status["holder"]) == (False, None)
    assert status["statistics"]["documents"] == 2
    assert status["statistics"]["conflicts"] == 1
    assert status["retention"]["mode"] == "nondominated_plus_recent_history"
    assert status["retention"]["source"] == "settings"
    text = run("status", "--data", data)
    assert status["stream"] in text.stdout
    assert text.stderr == ""


def test_status_names_the_holder_and_the_retention_set_at_run_time(run: Callable[..., Result], data: str) -> None:
    with held(data, "http://127.0.0.1:7000") as store:
        stored = RuntimeRetention(payload_retention_days=7, compaction_interval_seconds=60, updated_at=1)
        store.writer.save_setting(RETENTION, stored.encode())
        status = answer(run("status", "--json", "--data", data))
    assert status["running"]
    assert status["holder"] == {"pid": os.getpid(), "url": "http://127.0.0.1:7000"}
    assert status["retention"]["payload_days"] == 7
    assert status["retention"]["interval_seconds"] == 60
    assert status["retention"]["source"] == "admin API"


COMPACT_KEYS = {
    *("dry_run", "by", "policy", "compacts", "floor", "compacted_snapshots", "compacted_revisions", "compacted_bytes"),
    *("forgotten_documents", "forgotten_bytes", "expired", "expired_bytes", "vanished"),
    *("file_bytes_before", "file_bytes_after"),
}


def test_a_dry_run_says_what_a_run_then_does(run: Callable[..., Result], data: str) -> None:
    arguments = ("compact", "--json", "--payload-days", "0", "--data", data)
    would = answer(run(*arguments, "--dry-run"))
    assert would.keys() == COMPACT_KEYS
    assert (would["dry_run"], would["compacted_snapshots"]) == (True, 26)
    assert answer(run("status", "--json", "--data", data))["statistics"]["compacted"] == 0
    did = answer(run(*arguments))
    assert did.keys() == COMPACT_KEYS
    counts = {"floor", "expired", "vanished"} | {key for key in would if key.startswith(("compacted_", "forgotten_"))}
    assert {key: did[key] for key in counts} == {key: would[key] for key in counts}
    assert did["file_bytes_after"] < did["file_bytes_before"] - did["compacted_bytes"] // 2
    assert answer(run("verify", "--json", "--data", data))["sound"]
    assert answer(run(*arguments))["compacted_snapshots"] == 0


def test_the_guide_shows_a_dry_run_as_it_is(run: Callable[..., Result], data: str) -> None:
    guide = (DOCS.parent / "how-to" / "choose-retention.md").read_text()
    shown = next(part for part in guide.split("```") if "would go " in part).strip().splitlines()
    told = run("compact", "--dry-run", "--mode", "current_only", "--data", data).stdout.splitlines()
    number = re.compile(r"\d[\d.,]*( [KMG]iB| B)?")
    assert [number.sub("N", line) for line in told] == [number.sub("N", line) for line in shown]


def test_compact_follows_the_settings_the_run_time_and_then_its_options(
    run: Callable[..., Result], data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def would_go(*options: str) -> int:
        return answer(run("compact", "--dry-run", "--json", "--data", data, *options))["compacted_snapshots"]

    assert would_go() == 0
    assert would_go("--mode", "current_only") == 29
    monkeypatch.setenv("ANABRANCH_RETENTION_PAYLOAD_DAYS", "0")
    assert would_go() == 26
    assert would_go("--recent-count", "10") == 20
    with held(data) as store:
        stored = RuntimeRetention(payload_retention_days=None, compaction_interval_seconds=60, updated_at=1)
        store.writer.save_setting(RETENTION, stored.encode())
    assert would_go() == 0
    assert would_go("--payload-days", "0") == 26


def test_compact_says_so_when_the_policy_lets_nothing_go(run: Callable[..., Result], data: str) -> None:
    result = run("compact", "--data", data)
    assert result.exit_code == 0
    assert "payload_days" in result.stderr


def test_compact_asks_the_node_that_holds_the_store(
    run: Callable[..., Result], data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"floor": 5, "compacted_snapshots": 2, "compacted_bytes": 900, "forgotten_documents": 1, "expired": 3}
    report |= {"forgotten_bytes": 70, "expired_bytes": 30}
    reply = {**report, "file_bytes_before": 4000, "file_bytes_after": 2000}
    monkeypatch.setenv("ANABRANCH_ADMIN_TOKEN", TOKEN)
    with admin_api({("POST", "/admin/compact"): (200, reply)}) as (url, asked), held(data, url):
        done = answer(run("compact", "--json", "--data", data))
        assert answer(run("compact", "--dry-run", "--json", "--data", data))["dry_run"]
        refused = run("compact", "--payload-days", "0", "--data", data)
    assert done.keys() == COMPACT_KEYS
    assert done.items() >= {**reply, "by": url, "dry_run": False}.items()
    assert asked == [("POST", "/admin/compact", f"Bearer {TOKEN}", {})]
    assert refused.exit_code == Exit.IN_USE


@pytest.mark.parametrize("command", [("compact",), ("keys", "list"), ("keys", "create")])
@pytest.mark.parametrize(("status", "hint"), [(401, "ANABRANCH_ADMIN_TOKEN"), (503, "admin_token")])
def test_a_node_that_does_not_trust_us_is_4_with_advice(
    run: Callable[..., Result], data: str, command: tuple[str, ...], status: int, hint: str
) -> None:
    reply = (status, {"error": "unauthorized" if status == 401 else "admin not configured"})
    replies = {("POST", "/admin/compact"): reply, ("GET", "/admin/keys"): reply, ("POST", "/admin/keys"): reply}
    with admin_api(replies) as (url, _), held(data, url):
        result = run(*command, "--data", data)
    assert (result.exit_code, result.stdout) == (Exit.IN_USE, "")
    assert hint in result.stderr


@pytest.mark.parametrize("status", [503, 507])
def test_what_a_node_says_of_its_disk_is_passed_on(run: Callable[..., Result], data: str, status: int) -> None:
    reply = (status, {"error": "compaction was cut short: is there room on the disk? see the log"})
    with admin_api({("POST", "/admin/compact"): reply}) as (url, _), held(data, url):
        result = run("compact", "--data", data)
    assert result.exit_code == Exit.FAILED
    assert f"answered {status}: compaction was cut short: is there room on the disk?" in result.stderr


def test_a_holder_without_an_address_is_4(run: Callable[..., Result], data: str) -> None:
    with held(data):
        assert run("compact", "--data", data).exit_code == Exit.IN_USE


def test_a_holder_that_is_just_starting_is_no_process_0(run: Callable[..., Result], data: str) -> None:
    with held(data) as store:
        assert store._lock is not None
        os.ftruncate(store._lock, 0)
        assert f"{data} is in use by another process; try again" in run("compact", "--data", data).stderr


def test_serve_on_a_folder_in_use_says_what_to_do(run: Callable[..., Result], data: str) -> None:
    with held(data):
        refused = run("serve", "--data", data)
    assert refused.exit_code == Exit.IN_USE
    assert refused.stderr.endswith("; stop it first, or take another folder with --data\n")


def test_a_file_is_no_folder_of_a_store(run: Callable[..., Result]) -> None:
    Path("README.md").write_text("")
    said = "anabranch: README.md is a file; --data takes the folder of a store\n"
    assert run("status", "--data", "README.md").stderr == said


def test_verify_of_a_sound_store_is_0(run: Callable[..., Result], data: str) -> None:
    verified = answer(run("verify", "--json", "--data", data))
    assert set(verified) >= {"sound", "checked", "signatures", "documents", "count", "findings", "floor", "tip"}
    assert (verified["sound"], verified["checked"], verified["findings"]) == (True, len(HISTORY), [])
    with held(data, "http://127.0.0.1:1"):
        assert run("verify", "--data", data).exit_code == 0


def test_verify_of_a_damaged_store_is_3_and_says_what_to_do(run: Callable[..., Result], data: str) -> None:
    connection = apsw.Connection(str(Path(data) / DATABASE))
    connection.execute("UPDATE payloads SET raw = CAST(replace(raw, 'sealed', 'forged') AS BLOB) WHERE position = 7")
    connection.execute("DELETE FROM payloads WHERE position = 9")
    connection.close()
    verified = answer(run("verify", "--json", "--data", data), Exit.FOUND_WRONG)
    assert not verified["sound"]
    assert [finding["position"] for finding in verified["findings"]] == [7, 9]
    assert all(finding.keys() == {"position", "id", "what", "advice"} for finding in verified["findings"])
    result = run("verify", "--data", data)
    assert result.exit_code == Exit.FOUND_WRONG
    assert "position 7" in result.stdout
