"""Access keys are made, listed, revoked and deleted, on the store or through the node that holds it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from stand_ins import TOKEN, admin_api, answer, held

from anabranch.cli.shell import Exit

KEY = {"label": "Ada", "pubkey": None, "created_at": 1, "expires_at": None, "storage_limit_bytes": None}
KEY_KEYS = {*KEY, "key", "revoked", "used_bytes", "usable"}


def test_a_key_is_made_listed_revoked_and_deleted(run: Callable[..., Result]) -> None:
    options = ("--label", "Ada", "--pubkey", "AB" * 32, "--expires-in", "30d", "--storage-limit", "100MB")
    made = answer(run("keys", "create", "--json", "--data", "store", *options))["key"]
    assert made.keys() == KEY_KEYS
    assert re.fullmatch(r"sk_[a-z0-9]{24}", made["key"])
    assert (made["label"], made["pubkey"], made["storage_limit_bytes"]) == ("Ada", "ab" * 32, 100_000_000)
    assert made["expires_at"] - made["created_at"] == 30 * 86_400
    assert answer(run("keys", "list", "--json", "--data", "store"))["keys"] == [made]
    listed = run("keys", "list", "--data", "store").stdout
    assert made["key"] not in listed
    assert made["key"] in run("keys", "list", "--show", "--data", "store").stdout
    revoked = answer(run("keys", "revoke", made["key"][:12], "--json", "--data", "store"))["key"]
    assert (revoked["revoked"], revoked["usable"]) == (True, False)
    assert answer(run("keys", "delete", made["key"], "--json", "--data", "store")) == {"deleted": made["key"]}
    assert answer(run("keys", "list", "--json", "--data", "store"))["keys"] == []


def test_a_new_key_alone_is_on_stdout(run: Callable[..., Result]) -> None:
    assert re.fullmatch(r"sk_[a-z0-9]{24}\n", run("keys", "create", "--data", "store").stdout)


def test_an_unknown_or_ambiguous_key_fails(run: Callable[..., Result]) -> None:
    run("keys", "create", "--data", "store")
    run("keys", "create", "--data", "store")
    assert run("keys", "revoke", "sk_", "--data", "store").exit_code == Exit.USAGE
    assert run("keys", "delete", "nonsense", "--data", "store").exit_code == Exit.FAILED


@pytest.mark.parametrize("command", ["revoke", "delete"])
@pytest.mark.parametrize("beginning", ["", "s", "sk_"])
def test_what_every_key_begins_with_takes_not_even_the_only_one(
    run: Callable[..., Result], command: str, beginning: str
) -> None:
    key = run("keys", "create", "--data", "store").stdout.strip()
    refused = run("keys", command, beginning, "--data", "store")
    assert (refused.exit_code, refused.stderr) == (
        Exit.USAGE,
        "anabranch: every key begins so; write more of it than sk_\n",
    )
    (kept,) = answer(run("keys", "list", "--json", "--data", "store"))["keys"]
    assert kept["key"] == key and not kept["revoked"]


@pytest.mark.parametrize(
    "options", [["--expires-in", "soon"], ["--storage-limit", "much"], ["--pubkey", "npub1"], ["--expires-in", "0d"]]
)
def test_a_key_with_odd_options_is_not_made(run: Callable[..., Result], options: list[str]) -> None:
    assert run("keys", "create", "--data", "store", *options).exit_code == Exit.USAGE
    assert not Path("store").exists()


def test_keys_go_through_the_node_that_holds_the_store(
    run: Callable[..., Result], data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {**KEY, "key": "sk_" + "a" * 24, "revoked": False, "used_bytes": 0}
    path = f"/admin/keys/{key['key']}"
    replies = {
        ("GET", "/admin/keys"): (200, {"keys": [key]}),
        ("POST", "/admin/keys"): (201, key),
        ("PATCH", path): (200, {**key, "revoked": True}),
        ("DELETE", path): (200, {"deleted": True}),
    }
    monkeypatch.setenv("ANABRANCH_ADMIN_TOKEN", TOKEN)
    with admin_api(replies) as (url, asked), held(data, url):
        assert answer(run("keys", "list", "--json", "--data", data))["keys"][0]["key"] == key["key"]
        assert answer(run("keys", "create", "--label", "Ada", "--json", "--data", data))["key"].keys() == KEY_KEYS
        assert answer(run("keys", "revoke", "sk_aaa", "--json", "--data", data))["key"]["revoked"]
        assert answer(run("keys", "delete", key["key"], "--json", "--data", data))["deleted"] == key["key"]
    changing = [request for request in asked if request[0] != "GET"]
    assert changing == [
        (
            "POST",
            "/admin/keys",
            f"Bearer {TOKEN}",
            {"label": "Ada", "pubkey": None, "expires_at": None, "storage_limit_bytes": None},
        ),
        ("PATCH", path, f"Bearer {TOKEN}", {"revoked": True}),
        ("DELETE", path, f"Bearer {TOKEN}", None),
    ]
