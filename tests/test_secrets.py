"""Secrets are compared in constant time: how long a wrong guess takes says nothing about what is right."""

import ast
from pathlib import Path

import pytest

import anabranch

ROOT = Path(anabranch.__file__).parent

COMPARE_SECRETS = [
    ("node/admin.py", "_trusted"),  # the operator's token
    ("node/access.py", "find"),  # an access key in an operator's request
    ("wire/session.py", "find_grant"),  # one that a client shows
    ("wire/session.py", "_may_authenticate"),  # the challenge
    ("core/nip44.py", "decrypt"),  # what proves a payload
    ("core/revision_payload.py", "read"),  # the id that a revision's payload must have
]


@pytest.mark.parametrize(("file", "name"), COMPARE_SECRETS)
def test_what_compares_a_secret_takes_as_long_for_every_guess(file: str, name: str):
    module = ast.parse((ROOT / file).read_text("utf-8"), file)
    (function,) = (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == name)
    calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in calls
