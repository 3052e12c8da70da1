"""What the client library offers is in its reference: every name, call, state, change and field."""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Node

import anabranch.client
from anabranch.client import Change, ChangeKind, Document, DocumentVersion, Refusal, RelayStatus, Replica, Timing
from anabranch.client.follower import TRANSITIONS, State

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "client.md").read_text()
NOT_FOR_APPS = {"in_file", "in_prover", "stir_others", "tell"}  # for those who follow relays on a replica's behalf
INTERNAL = {"World"}  # for tests


@pytest.mark.parametrize("name", sorted(set(anabranch.client.__all__) - INTERNAL))
def test_every_public_name_is_documented(name: str):
    assert name in TEXT


def test_every_call_of_a_replica_is_documented():
    calls = {name for name, _ in inspect.getmembers(Replica, inspect.isfunction) if not name.startswith("_")}
    for name in calls - NOT_FOR_APPS - {"close"}:
        assert f"{name}(" in TEXT, name
    for name in inspect.signature(Replica.open).parameters:
        if name != "world":
            assert f"`{name}`" in TEXT, name


def test_every_state_and_where_it_leads_is_documented():
    for state in State:
        (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{state.value}` |")]
        leads = row.rstrip("| ").rpartition("|")[2]
        for to in set(TRANSITIONS[state].values()) - {State.OFFLINE, State.STOPPED}:
            # A relay that asks for authentication only when it is asked something goes back one step.
            if to is not State.AUTHENTICATING or state is State.CONNECTING:
                assert f"`{to.value}`" in leads, (state, to)


def test_every_kind_of_change_is_documented():
    for kind in ChangeKind:
        assert f"`{kind.value}`" in TEXT, kind


@pytest.mark.parametrize("value", [Change, Document, DocumentVersion, Refusal, RelayStatus])
def test_every_field_is_documented(value: type):
    for field in dataclasses.fields(value):
        assert f"`{field.name}`" in TEXT, field.name


def test_the_timing_is_documented_as_it_is():
    shown = ", ".join(f"{name}={getattr(Timing(), name):g}" for name in Timing.__struct_fields__)
    assert f"Timing({shown})" in TEXT


def test_the_first_example_of_the_how_to_runs(node: Node, tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "build-an-app-on-a-replica.md").read_text()
    example = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "key").write_text("12" * 32)
    (tmp_path / "example.py").write_text(example.replace("ws://127.0.0.1:7447", node.url))
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("{'theme': 'dark'}\n", "")
