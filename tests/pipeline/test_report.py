"""A report is one page that says what is so, harms nobody, and can be read in a browser."""

import html
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import AUTHORS, START, WRAPS, revision, snapshot

from anabranch.core import revisions, snapshots
from anabranch.core.nostr import serialise
from anabranch.pipeline import svg
from anabranch.pipeline.jobs import report
from anabranch.pipeline.jobs.audit import Findings
from anabranch.pipeline.jobs.ingest import ingest
from anabranch.pipeline.lake import Lake
from anabranch.pipeline.report_page import page
from anabranch.pipeline.schema import VERSIONS, arrow

HOSTILE = "</text></svg><script>alert('x')</script><img src=x onerror=alert(1)>"
NOW = START + 40 * 86_400


class Elements(HTMLParser):
    """Every element and attribute of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


def read(lake: Lake, folder: Path, name: str, lines: list[bytes]) -> None:
    file = folder / f"{name}.jsonl"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    ingest(lake, [str(file)])


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory: pytest.TempPathFactory) -> tuple[report.Report, str]:
    """A report on two logs: a conflict that was settled, one that was not, and names that mean harm."""
    folder = tmp_path_factory.mktemp("report")
    events = [
        snapshot(AUTHORS[0], HOSTILE, {HOSTILE: 1}, START),
        snapshot(AUTHORS[0], HOSTILE, {HOSTILE: 1, "phone": 1}, START + 86_400),
        snapshot(AUTHORS[0], HOSTILE, {HOSTILE: 2}, START + 2 * 86_400),
        snapshot(AUTHORS[0], "settled", {"laptop": 1}, START),
        snapshot(AUTHORS[0], "settled", {"phone": 1}, START + 86_400),
        snapshot(AUTHORS[0], "settled", {"laptop": 2, "phone": 1}, START + 9 * 86_400),
        revision(WRAPS[0], AUTHORS[1], "R", "a" * 64, at=START + 3 * 86_400),
        revision(WRAPS[1], AUTHORS[1], "R", "b" * 64, ["a" * 64], at=START + 20 * 86_400, deletes=True),
    ]
    lines = [serialise(event) for event in events]
    lake = Lake(folder / "<b>lake", spark, create=True)
    read(lake, folder, "<i>one", [*lines, b'{"id": "<script>alert(2)</script>"}'])
    read(lake, folder, "two", lines[:5])
    compared = Findings(False, missing={"<u>a": 0, "b": 3}, operations={"<u>a": 8, "b": 5}, heads=2)
    found = report.write(lake, folder / "report.html", NOW, compared=compared)
    return found, (folder / "report.html").read_text()


def test_the_numbers_are_those_of_the_lake(made: tuple[report.Report, str]):
    found, _ = made
    totals = found.totals
    assert (totals.operations, totals.documents, totals.conflicts, totals.tombstones) == (8, 3, 1, 1)
    assert (totals.owners, totals.rejected, totals.gaps) == (2, 1, 0)
    assert {name: sum(counts) for name, counts in found.growth.families.items() if any(counts)} == {
        "snapshot": 6,
        "revision": 2,
    }
    assert (sum(found.conflicts.came), sum(found.conflicts.settled)) == (2, 1)
    assert [(one.devices, one.documents, one.conflicts) for one in found.devices] == [(2, 2, 1)]
    assert {one.name: one.lacking for one in found.replicas if one.lacking} == {found.replicas[1].name: 3}
    savings = {one.policy: one for one in found.savings}
    assert savings["full_retention"].dropped == 0 < savings["current_only"].dropped
    assert all(one.kept + one.dropped == totals.bytes for one in found.savings)


def test_names_that_strangers_chose_are_only_ever_text(made: tuple[report.Report, str]):
    _, text = made
    seen = Elements(text)
    assert not seen.tags & {"script", "img", "b", "u", "iframe", "object", "link"} - {"b"}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert "alert(" in html.unescape(text)  # it is there, as text


def test_the_page_asks_no_network_and_runs_nothing(made: tuple[report.Report, str]):
    _, text = made
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href|url\()\s*=?\s*["']?\s*(https?:|//)""", text)
    assert not [value for name, value in Elements(text).attributes if name in ("src", "href")]
    assert 0 < text.index("Growth") < text.index("Conflicts") < text.index("Retention") < text.index("Replicas")
    assert "They have not converged: 3 operations missing" in text


def test_an_empty_lake_has_a_page_too(new_lake: Callable[[], Lake], tmp_path: Path):
    found = report.write(new_lake(), tmp_path / "report.html", NOW)
    text = (tmp_path / "report.html").read_text()
    assert found.totals.operations == 0 and "no operation in this lake yet" in text
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["report.html"]


def rows(events: list[tuple[int, str, dict[str, int] | None, str | None, list[str]]]) -> pa.Table:
    made = [
        {
            "document": "d",
            "family": "snapshot" if clock is not None else "revision",
            "id": id,
            "clock": None if clock is None else list(clock.items()),
            "revision": name,
            "parents": parents,
            "mtime": None if clock is not None else at * 1000,
            "created_at": at,
        }
        for at, id, clock, name, parents in events
    ]
    return pa.Table.from_pylist(made, arrow(VERSIONS))


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1), max_size=12))
def test_snapshots_are_in_conflict_exactly_while_the_rule_says_so(clocks: list[dict[str, int]]):
    versions = [report._Version(f"{at:02}", clock, "") for at, clock in enumerate(clocks)]
    turned = dict(report.turns(rows([(at, f"{at:02}", clock, None, []) for at, clock in enumerate(clocks)])))
    several = [len(snapshots.heads(versions[: at + 1])) > 1 for at in range(len(versions))]
    expected = {
        at: 1 if now else -1 for at, (before, now) in enumerate(itertools.pairwise([False, *several])) if before != now
    }
    assert turned == expected


@given(st.lists(st.sets(st.integers(0, 11), max_size=2), max_size=12), st.randoms())
def test_revisions_are_in_conflict_exactly_while_the_rule_says_so(parents: list[set[int]], rng):
    made = [(f"{at:02}", [f"{other:02}" for other in of if other != at]) for at, of in enumerate(parents)]
    rng.shuffle(made)
    history = [(at, name, None, name, of) for at, (name, of) in enumerate(made)]
    turned = dict(report.turns(rows(history)))

    class One:
        def __init__(self, revision: str, parents: list[str]) -> None:
            self.revision, self.parents = revision, parents

    there = [One(*one) for one in made]
    several = [len(revisions.heads(there[: at + 1])) > 1 for at in range(len(there))]
    expected = {
        at: 1 if now else -1 for at, (before, now) in enumerate(itertools.pairwise([False, *several])) if before != now
    }
    assert turned == expected


@given(st.integers(0, 10**12), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**12))
def test_bins_are_few_and_hold_all_but_what_is_far_away(first: int, to_low: int, to_high: int, to_last: int):
    low, high = first + to_low, first + to_low + to_high
    step, times = report.bins(first, low, high, high + to_last)
    assert 1 <= len(times) <= report.BINS_MAX + 2
    assert times[0] <= low and times[-1] + step > high


@given(st.floats(0, 10**12))
def test_ticks_are_round_few_and_reach_the_top(top: float):
    found = svg.ticks(top)
    assert found[0] == 0 and found[-1] >= top * 0.998 and 2 <= len(found) <= 7


def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if (found := shutil.which(name)) is not None:
            return found
    pytest.skip("no browser: install chromium to see the page rendered")


def test_a_browser_renders_it_without_running_anything(made: tuple[report.Report, str], tmp_path: Path):
    found, text = made
    # The policy of the page would stop a script that slipped through: without it, one would betray itself.
    open_page = re.sub(r"<meta http-equiv=[^>]*>", "", page(found))
    assert open_page != text
    (tmp_path / "page.html").write_text(open_page)
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--no-first-run", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    seen = subprocess.run(
        [*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=60, check=False
    )
    assert seen.returncode == 0, seen.stderr[-2000:]
    dom = Elements(seen.stdout)
    assert {"svg", "polygon", "rect", "table", "figcaption"} <= dom.tags
    assert not dom.tags & {"script", "img"}
    assert "8 signed operations on 3 documents of 2 owners" in seen.stdout
