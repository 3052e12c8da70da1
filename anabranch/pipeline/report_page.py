"""The page of a report: numbers in, one HTML file out, that needs nothing else and asks no network.

Every plot has a caption that says what is seen, and its numbers beneath it for whoever wants them. Names, tags and
reasons are what strangers have signed: everything is escaped, and the page forbids itself scripts besides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from anabranch.pipeline import svg
from anabranch.pipeline.report_numbers import DEVICES_MAX, Report

STYLE = Path(__file__).parent / "assets" / "report.css"
WIDE, NARROW = 844, 326
"""Each plot is drawn twice, so that its letters keep their size; the style sheet shows the one that fits."""
NAME_MAX = 80

NBSP = "\N{NO-BREAK SPACE}"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def page(report: Report) -> str:
    """The whole page."""
    parts = [_header(report), _numbers(report)]
    if report.totals.operations:
        parts += [_growth(report), _conflicts(report), _devices(report), _owners(report), _savings(report)]
    parts += [_replicas(report), _compared(report), _rejected(report), _gaps(report)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_text(_name(report))}: a lake of operations</title>"
        f"<style>{STYLE.read_text(encoding='utf-8')}</style></head>\n<body><main>\n"
        + "\n".join(filter(None, parts))
        + f"\n<footer>Made by Anabranch on {_time(report.made_at)} from <code>{_text(report.lake)}</code>. "
        "This file needs no network and holds no content of any document.</footer>\n</main></body></html>\n"
    )


# --- words and numbers -----------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """Text of whatever origin: cut short, escaped, without control characters."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))
    return escape(text if len(text) <= NAME_MAX else text[: NAME_MAX - 1] + "…")


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _bytes(number: float) -> str:
    power = 0
    while abs(number) >= 1024 and power < len(_UNITS) - 1:
        number, power = number / 1024, power + 1
    return f"{number:.{1 if power else 0}f}{NBSP}{_UNITS[power]}"


def _share(part: float, whole: float) -> str:
    percent = 100 * part / whole if whole else 0
    return f"{percent:.{0 if percent >= 10 or not percent else 1}f}{NBSP}%"


def _some(number: int, noun: str) -> str:
    return f"{_count(number)} {noun if number == 1 else noun + 's'}"


def _time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%-d %B %Y, %H:%M UTC")


def _name(report: Report) -> str:
    return report.lake.rstrip("/").rpartition("/")[2] or report.lake


# --- pieces ----------------------------------------------------------------------------------------------------------


def _section(title: str, intro: str, *inside: str) -> str:
    return f"<section><h2>{title}</h2><p>{intro}</p>{''.join(inside)}</section>"


def _figure(draw: Callable[[int], str], caption: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    marks = "".join(f'<li><i class="{kind}"></i>{words}</li>' for kind, words in legend)
    return (
        f'<figure><div class="wide">{draw(WIDE)}</div><div class="narrow">{draw(NARROW)}</div>'
        + (f'<ul class="legend">{marks}</ul>' if marks else "")
        + f'<figcaption class="caption">{caption}</figcaption></figure>'
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | int]], texts: int = 1) -> str:
    """Rows of markup and numbers. The first columns are texts; the others stand right."""

    def line(cells: Sequence[str | int], tag: str) -> str:
        shown = (_count(cell) if isinstance(cell, int) else cell for cell in cells)
        marked = (f"<{tag}{' class=n' if at >= texts else ''}>{cell}</{tag}>" for at, cell in enumerate(shown))
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table><thead>{line(columns, "th")}</thead><tbody>{body}</tbody></table></div>'


def _details(table: str, what: str = "The numbers") -> str:
    return f"<details><summary>{what}</summary>{table}</details>"


# --- sections --------------------------------------------------------------------------------------------------------


def _header(report: Report) -> str:
    totals, times = report.totals, report.growth.times
    if not totals.operations:
        said = "There is no operation in this lake yet. <code>anabranch pipeline ingest</code> brings some in."
    else:
        span = f" between {svg.day(times[0])} and {svg.day(times[-1])}" if times else ""
        said = (
            f"{_some(totals.operations, 'signed operation')} on {_some(totals.documents, 'document')} of "
            f"{_some(totals.owners, 'owner')}, written{span}; each of them proven."
        )
    return f"<header><h1>{_text(_name(report))}</h1><p>{said}</p></header>"


def _numbers(report: Report) -> str:
    totals = report.totals
    cells = [
        ("operations", _count(totals.operations), False),
        ("of signed bytes", _bytes(totals.bytes), False),
        ("documents", _count(totals.documents), False),
        ("in conflict", _count(totals.conflicts), totals.conflicts > 0),
        ("deleted", _count(totals.tombstones), False),
        ("rejected", _count(totals.rejected), totals.rejected > 0),
    ]
    return (
        '<section class="numbers">'
        + "".join(
            f"<div{' class=attention' if attention else ''}><b>{value}</b><span>{name}</span></div>"
            for name, value, attention in cells
        )
        + "</section>"
    )


def _growth(report: Report) -> str:
    growth = report.growth
    present = {name: counts for name, counts in growth.families.items() if any(counts)}
    summed = {name: list(itertools.accumulate(counts)) for name, counts in present.items()}
    words = {"snapshot": "snapshots", "revision": "revisions", "plain": "other events"}
    busiest = max(range(len(growth.times)), key=lambda at: sum(counts[at] for counts in present.values()))
    most = sum(counts[busiest] for counts in present.values())
    caption = (
        f"All operations up to each day, by when their authors say they made them. Most came around "
        f"{svg.day(growth.times[busiest])}: {_count(most)} in {_step(growth.times)}."
    )
    if growth.outside:
        caption += f" {_some(growth.outside, 'operation')} outside of this time are not drawn."
    rows = [[svg.day(time), *(counts[at] for counts in present.values())] for at, time in enumerate(growth.times)]
    return _section(
        "Growth",
        "How the log has grown.",
        _figure(
            lambda width: svg.areas(growth.times, summed, width, "operations over time, by family"),
            caption,
            [(name, f"{words[name]}, {_count(sum(counts))}") for name, counts in present.items()],
        ),
        _details(_table(["from", *(words[name] for name in present)], rows), "New operations, by time"),
    )


def _step(times: Sequence[int]) -> str:
    """How long a column of a plot is, in words."""
    seconds = times[1] - times[0] if len(times) > 1 else 60
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return f"a {unit}" if seconds == length else f"{seconds // length} {unit}s"
    return f"{seconds} seconds"


def _conflicts(report: Report) -> str:
    came, settled, times = report.conflicts.came, report.conflicts.settled, report.growth.times
    now = report.totals.conflicts
    if not sum(came):
        return _section("Conflicts", "Nobody has written the same document apart: there never was a conflict.")
    left = [a - b for a, b in zip(itertools.accumulate(came), itertools.accumulate(settled), strict=True)]
    peak = max(range(len(left)), key=left.__getitem__)
    if now:
        open_now = f"{_some(now, 'document')} {'is' if now == 1 else 'are'} left for somebody to settle"
    else:
        open_now = "all of them are settled"
    return _section(
        "Conflicts",
        "A document is in conflict while it has several versions that nothing supersedes: it was written apart, and "
        "nobody has joined the versions yet.",
        _figure(
            lambda width: svg.columns(times, {"came": came}, {"settled": settled}, width, "conflicts over time"),
            f"Documents that came into conflict (up) and out of it (down), in {_step(times)} each. "
            f"Of {_some(sum(came), 'conflict')} so far, {_count(sum(settled))} were settled; today {open_now}.",
            [("came", "came into conflict"), ("settled", "were settled")],
        ),
        _figure(
            lambda width: svg.areas(times, {"open": left}, width, "open conflicts over time"),
            f"Open conflicts at each time. The most, {_count(left[peak])}, were open around {svg.day(times[peak])}.",
        ),
        _details(
            _table(
                ["from", "came", "settled", "open after it"],
                [[svg.day(time), *numbers] for time, *numbers in zip(times, came, settled, left, strict=True)],
            )
        ),
    )


def _devices(report: Report) -> str:
    if not report.devices:
        return ""

    def words(devices: int) -> str:
        return f"{devices} or more devices" if devices == DEVICES_MAX else _some(devices, "device")

    first, last = report.devices[0], report.devices[-1]
    fewer = f"; with {words(first.devices)}, {_share(first.conflicts, first.documents)}" if first is not last else ""
    rows = [
        (
            words(one.devices),
            _count(one.documents),
            {"agreed": one.documents - one.conflicts, "conflict": one.conflicts},
        )
        for one in report.devices
    ]
    return _section(
        "Devices",
        "A snapshot's clock names the devices that have written its document. Revisions come in wraps that name none, "
        "so they are not counted here.",
        _figure(
            lambda width: svg.bars(rows, _count, width, "documents by number of devices"),
            f"Documents by how many devices have written them. With {words(last.devices)}, "
            f"{_share(last.conflicts, last.documents)} are in conflict now{fewer}.",
            [("agreed", "one current version"), ("conflict", "in conflict")],
        ),
        _details(
            _table(
                ["device", "documents", "edits"],
                [[f"<code>{_text(one.name)}</code>", one.documents, one.edits] for one in report.busiest],
            ),
            "The busiest devices",
        ),
    )


def _owners(report: Report) -> str:
    if not report.owners:
        return ""
    intro = "Whose documents these are: the author, or of a revision the recipient."
    if report.totals.owners > len(report.owners):
        listed = sum(one.operations for one in report.owners)
        share = _share(listed, report.totals.operations)
        intro += f" The {len(report.owners)} with the most operations have {share} of all."
    return _section(
        "Owners",
        intro,
        _table(
            ["public key", "operations", "size", "in conflict"],
            [
                [f"<code>{_text(one.pubkey[:16])}…</code>", one.operations, _bytes(one.bytes), one.conflicts]
                for one in report.owners
            ],
        ),
    )


def _savings(report: Report) -> str:
    if not report.savings:
        return ""
    best = max(report.savings, key=lambda one: one.dropped)
    total = best.kept + best.dropped
    rows = [
        (one.policy, f"{_bytes(one.kept)} kept", {"kept": one.kept, "dropped": one.dropped}) for one in report.savings
    ]
    caption = (
        f"<code>{_text(best.policy)}</code> would let go of {_bytes(best.dropped)}, "
        f"{_share(best.dropped, total)} of all: {_some(best.dropped_operations, 'payload')} that something newer "
        "supersedes. Heads never go."
        if best.dropped
        else "None of these policies would let anything go today."
    )
    return _section(
        "Retention",
        "What each policy would keep and drop today, if a node ran it on these operations.",
        _figure(
            lambda width: svg.bars(rows, _bytes, width, "bytes kept and dropped, by policy"),
            caption,
            [("kept", "kept"), ("dropped", "dropped")],
        ),
        _details(
            _table(
                ["policy", "kept", "dropped", "payloads dropped"],
                [
                    [f"<code>{_text(one.policy)}</code>", _bytes(one.kept), _bytes(one.dropped), one.dropped_operations]
                    for one in report.savings
                ],
            )
        ),
    )


def _replicas(report: Report) -> str:
    if not report.replicas:
        return ""
    states = {
        "retained": "has it",
        "compacted": "knows it, payload gone",
        "removed": "has removed it",
        "lacking": "was not seen there",
    }
    rows: list[tuple[str, str, Mapping[str, float]]] = [
        (one.name, _count(one.retained), {state: getattr(one, state) for state in states}) for one in report.replicas
    ]
    short = [one for one in report.replicas if one.lacking]
    if len(report.replicas) == 1:
        caption = "All of this comes from one log; with a second one in the lake you see here what either lacks."
    elif not short:
        caption = "Every log was seen to have all operations that any of them has."
    else:
        worst = max(short, key=lambda one: one.lacking)
        caption = (
            f"{_some(len(short), 'log')} of {len(report.replicas)} {'lacks' if len(short) == 1 else 'lack'} something; "
            f"the most is missing in <code>{_text(worst.name)}</code>: {_some(worst.lacking, 'operation')}."
        )
    return _section(
        "Replicas",
        "Of all operations that any log has shown to this lake: what each of them was last seen to have.",
        _figure(
            lambda width: svg.bars(rows, _count, width, "operations by log"),
            caption,
            [(state, words) for state, words in states.items() if any(getattr(one, state) for one in report.replicas)],
        ),
        _details(
            _table(
                ["log", *states],
                [
                    [f"<code>{_text(one.name)}</code>", *(getattr(one, state) for state in states)]
                    for one in report.replicas
                ],
            )
        ),
    )


def _compared(report: Report) -> str:
    found = report.compared
    if found is None:
        return ""
    names = list(found.operations)
    rows = [
        (name, _count(found.operations[name]), {"retained": found.operations[name], "lacking": found.missing[name]})
        for name in names
    ]
    if found.converged:
        caption = "They have converged: the same operations, the same heads."
    else:
        lacking = sum(found.missing.values())
        caption = (
            f"They have not converged: {_some(lacking, 'operation')} missing in one or another, "
            f"{_some(found.heads, 'document')} with other heads. "
            "<code>anabranch pipeline audit --repair</code> closes it."
        )
    counted = ("operations", "missing", "compacted", "removed", "forged")
    return _section(
        "Compared",
        "This lake and the replicas it was compared with, operation by operation, each proven.",
        _figure(
            lambda width: svg.bars(rows, _count, width, "operations by replica"),
            caption,
            [("retained", "has"), ("lacking", "lacks")],
        ),
        _details(
            _table(
                ["replica", *counted],
                [
                    [f"<code>{_text(name)}</code>", *(getattr(found, what).get(name, 0) for what in counted)]
                    for name in names
                ],
            )
        ),
    )


def _rejected(report: Report) -> str:
    if not report.rejected:
        return ""
    return _section(
        "Rejected",
        f"{_some(report.totals.rejected, 'line')} of the logs {'is' if report.totals.rejected == 1 else 'are'} no "
        "operation, most often because:",
        _table(["reason", "lines"], [[_text(reason), count] for reason, count in report.rejected]),
    )


def _gaps(report: Report) -> str:
    if not report.gaps:
        return ""
    stretches = (
        "1 stretch of a log was" if report.totals.gaps == 1 else f"{report.totals.gaps:,} stretches of a log were"
    )
    return _section(
        "Gaps",
        f"{stretches} gone before it was read; the log was then read from its beginning again.",
        _table(
            ["log", "why", "after position"],
            [[f"<code>{_text(source)}</code>", _text(reason), position] for source, reason, position in report.gaps],
            texts=2,
        ),
    )
