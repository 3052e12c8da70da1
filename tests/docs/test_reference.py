"""What the code says and serves is in the reference, and no link of the documentation leads nowhere."""

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Node

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODE = ROOT / "anabranch"
WIRE, HTTP, METRICS = ((DOCS / "reference" / f"{name}.md").read_text() for name in ("wire", "http", "metrics"))

PREFIXES = (
    "invalid: ",
    "unsupported: ",
    "duplicate: ",
    "stored: ",
    "auth-required: ",
    "restricted: ",
    "error: ",
    "blocked: ",
    "token-",
    "rate-limited: ",
    "checkpoint too",
    "closed: ",
    "unknown negentropy",
)


def tree(path: str) -> ast.Module:
    return ast.parse((CODE / path).read_text())


NEVER_SENT = {
    "no request",  # ends a connection that never became a websocket
    "a filter must be an object",  # the session has refused such a message before
    "the public key is not a point of the curve",  # a client's, who encrypts
    "malformed event: not valid JSON in UTF-8",  # likewise; `anabranch import` says it
}


# --- the wire ------------------------------------------------------------------------------------------------------


def pieces(text: ast.expr) -> Iterator[str]:
    """The words of a string as it is sent: whole, or around what is filled in."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.strip():
            yield part.value


def sent_texts(path: str) -> set[str]:
    """Strings that begin with a machine-readable prefix, and the reasons that refusals and farewells are given."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            words = list(pieces(node))
            if words and words[0].startswith(PREFIXES):
                found.update(words)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in ("Invalid", "Unsupported", "Refused", "Hangup", "hang_up", "part", "changes_error", "NoRoom"):
                found.update(word for argument in node.args for word in pieces(argument))
    return found - NEVER_SENT


@pytest.mark.parametrize(
    "path",
    [
        "wire/messages.py",
        "wire/session.py",
        "wire/opened.py",
        "core/changes.py",
        "core/filter.py",
        "core/nostr.py",
        "core/operation.py",
        "core/revisions.py",
        "core/snapshots.py",
        "store/sql_writer.py",
        "node/main.py",
        "node/connection.py",
    ],
)
def test_every_text_that_is_sent_is_in_the_wire_reference(path: str):
    texts = sent_texts(path)
    missing = {text for text in texts if text.strip() not in WIRE}
    assert not missing


def test_texts_are_found_at_all():
    assert "duplicate: snapshot already exists" in sent_texts("wire/messages.py")
    assert "checkpoint too old: min_seq is " in sent_texts("core/changes.py")
    assert "too many subscriptions" in sent_texts("wire/opened.py")


def test_every_message_type_is_in_the_wire_reference():
    handlers = re.findall(r'^    "([A-Z-]+)": Session\.', (CODE / "wire/session.py").read_text(), re.MULTILINE)
    sent = re.findall(r'encode\(\("([A-Z-]+)"', (CODE / "wire/messages.py").read_text())
    assert len(handlers) >= 7 and len(sent) >= 8
    for name in {"EVENT", "EVENTS", *handlers, *sent}:
        assert f'["{name}",' in WIRE, name


def test_every_field_of_the_feed_is_in_the_wire_reference():
    fields = {
        pattern.value.value
        for node in ast.walk(tree("core/changes.py"))
        if isinstance(node, ast.match_case)
        for pattern in ast.walk(node.pattern)
        if isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant)
    }
    assert {"mode", "since", "include_compacted", "#d"} <= fields
    for field in fields:
        assert f"`{field}`" in WIRE, field


def test_every_limit_is_in_the_wire_reference():
    from anabranch.config import settings_table

    for setting in settings_table():
        if setting.path[0] == "limits" and setting.path[1] != "handshake_seconds":
            assert f"`{setting.key}` | {setting.default or 'unset'}" in WIRE, setting.key


# --- HTTP ----------------------------------------------------------------------------------------------------------


def served_paths() -> set[str]:
    constants = {
        node.value
        for node in ast.walk(tree("node/http.py"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"/\w*", node.value)
    }
    admin = {
        constant.value.rstrip("/")
        for node in ast.walk(tree("node/admin.py"))
        if isinstance(node, ast.Compare) and getattr(node.left, "id", "") == "path"
        for constant in node.comparators
        if isinstance(constant, ast.Constant)
    }
    return constants | {f"/admin/{name}" for name in admin}


def test_every_route_is_in_the_http_reference():
    paths = served_paths()
    assert {"/", "/ws", "/readyz", "/metrics", "/admin/keys", "/admin/compact", "/admin/retention"} <= paths
    for path in paths:
        assert f"`{path}`" in HTTP, path


def test_every_error_of_the_admin_api_is_in_the_http_reference():
    for node in ast.walk(tree("node/admin.py")):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "BadRequest":
            for argument in node.args:
                for words in pieces(argument):
                    assert words.strip() in HTTP, words


def test_every_key_of_nip_11_is_in_the_http_reference(node: Node):
    def keys(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for name, inner in value.items():
                yield name
                yield from keys(inner)

    for key in {*keys(node.info()), "contact", "pubkey", "created_at_lower_limit"}:
        assert key in HTTP, key


# --- metrics -------------------------------------------------------------------------------------------------------


def test_every_metric_of_a_running_node_is_in_the_metrics_reference(node: Node):
    served = node.http("GET", "/metrics").text
    names = {name for name in re.findall(r"^# TYPE (\w+) ", served, re.MULTILINE) if not name.endswith("_created")}
    assert len(names) >= 16
    documented = set(re.findall(r"^\| `((?:anabranch|sync)_\w+)` \|", METRICS, re.MULTILINE))
    assert names == documented


# --- links ---------------------------------------------------------------------------------------------------------

PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+?)\s*$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", html.unescape(heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_leads_nowhere(page: Path):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    for page in DOCS.rglob("*.md"):
        if page.parent != DOCS or page.name != "README.md":
            assert f"({page.relative_to(DOCS)})" in index, page.name


# --- tables --------------------------------------------------------------------------------------------------------


def test_every_table_and_column_is_in_the_reference():
    from anabranch.pipeline.schema import TABLES
    from anabranch.pipeline.source import OPTIONS

    text = (DOCS / "reference" / "tables.md").read_text()
    for name, schema in TABLES.items():
        assert f"## {name}\n" in text
        for column in schema.names:
            assert f"`{column}`" in text, (name, column)
    for option in OPTIONS:
        assert f"`{option}`" in text, option
