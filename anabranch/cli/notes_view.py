"""How notes are shown: as rows, side by side, and as JSON."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

import click

from anabranch.cli.shell import Failure
from anabranch.client import Document, DocumentVersion
from anabranch.core import clock, notes
from anabranch.core.nostr import Invalid
from anabranch.core.notes import Note

SHORT = 8  # characters of an id that are shown
_UNSEEN = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_VISIBLE = {code: chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>" for code in _UNSEEN} | {0x7F: "␡"}
_VISIBLE_TEXT = {code: shown for code, shown in _VISIBLE.items() if chr(code) not in "\n\t"}
BEGIN, END = "<<<<<<<", ">>>>>>>"


def visible(line: str) -> str:
    """A line in which nothing commands the terminal: what steers it (or turns the writing around) is shown instead."""
    return line.translate(_VISIBLE)


def visible_text(text: str) -> str:
    """The same of a text of several lines."""
    return text.replace("\r\n", "\n").translate(_VISIBLE_TEXT)


def note_of(content: dict[str, Any] | None) -> Note | None:
    """The note, or None where the payload is of another app or version."""
    if content is None:
        return None
    try:
        return notes.read(content)
    except Invalid:
        return None


def title_of(one: Document | DocumentVersion) -> str:
    if one.deleted:
        return "(deleted)"
    note = note_of(one.content)
    if note is None:
        return f"(cannot be read: {one.problem or 'not a note of a version that is known here'})"
    return note.title or "(empty)"


def text_of(content: dict[str, Any] | None) -> str:
    note = note_of(content)
    return note.markdown if note is not None else ""


def when(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M")


def as_json(document: Document) -> dict[str, Any]:
    return {
        "id": document.d,
        "title": title_of(document),
        "markdown": text_of(document.content),
        "edited_at": document.mtime,
        "in_conflict": document.in_conflict,
        "deleted": document.deleted,
        "payload": document.content,
        "versions": [version_as_json(version) for version in document.versions],
    }


def version_as_json(version: DocumentVersion) -> dict[str, Any]:
    return {
        "version": version.id,
        "edited_at": version.mtime,
        "current": version.current,
        "deleted": version.deleted,
        "written_here": version.written_here,
        "markdown": None if version.deleted else text_of(version.content),
    }


def row(document: Document, mark: str = "") -> str:
    marks = [click.style(mark, fg="red", bold=True)] if mark else []
    note = note_of(document.content)
    if document.in_conflict:
        marks.append(click.style("conflict", fg="red", bold=True))
    if document.deleted:
        marks.append(click.style("deleted", dim=True))
    if note is not None and note.pinned_at is not None:
        marks.append(click.style("pinned", fg="yellow"))
    if note is not None and note.archived_at is not None:
        marks.append(click.style("archived", dim=True))
    parts = [click.style(visible(document.d[:SHORT]), fg="cyan"), when(document.mtime), visible(title_of(document))]
    return "  ".join([*parts, *marks])


def history_rows(versions: Sequence[DocumentVersion], bases: Mapping[str, DocumentVersion]) -> str:
    """One a line, each with what it changed against the one it was written upon, where that is kept."""
    return "\n".join(version_row(number, one, bases.get(one.id)) for number, one in enumerate(versions, 1))


def version_row(number: int, version: DocumentVersion, base: DocumentVersion | None) -> str:
    mark = click.style("current", fg="green") if version.current else "       "
    where = "here" if version.written_here else "elsewhere"
    name = click.style(version.id[:SHORT], fg="cyan")
    changed, title = _changed(version, base), visible(title_of(version))
    return f"{number:>3}  {name}  {when(version.mtime)}  {mark}  {where:9}  {changed:7}  {title}"


def _changed(version: DocumentVersion, base: DocumentVersion | None) -> str:
    if base is None or version.content is None or base.content is None:
        return ""
    lines = difflib.ndiff(text_of(base.content).splitlines(), text_of(version.content).splitlines())
    marks = [line[0] for line in lines]
    return f"+{marks.count('+')} −{marks.count('-')}"


def bases_of(versions: Sequence[DocumentVersion], parents: Mapping[str, Sequence[str]]) -> dict[str, DocumentVersion]:
    """Of each version the newest that it was written upon: one of its parents, or of those that its clock had seen.

    `versions` are as in a history; `parents` are those of revisions. What nobody keeps is the base of none.
    """
    found: dict[str, DocumentVersion] = {}
    for one in versions:
        before = parents.get(one.id, ())
        known = [other for other in versions if other.id in before or clock.dominates(one.clock, other.clock)]
        direct = [other for other in known if not any(clock.dominates(between.clock, other.clock) for between in known)]
        if direct:
            found[one.id] = max(direct, key=lambda other: other.mtime)
    return found


def find_version(versions: Sequence[DocumentVersion], wanted: str) -> DocumentVersion:
    """By its number in the list, or the beginning of its id."""
    if wanted.isascii() and wanted.isdecimal() and 0 < int(wanted) <= len(versions):
        return versions[int(wanted) - 1]
    found = [version for version in versions if version.id.startswith(wanted.lower())]
    if len(found) != 1:
        raise Failure(f"{wanted!r} is {'no version' if not found else 'several versions'} of this note")
    return found[0]


# --- side by side ----------------------------------------------------------------------------------------------------


def side_by_side(versions: Sequence[DocumentVersion]) -> str:
    """The versions of a conflict in columns: what they share in one line, what they do not marked."""
    if len(versions) > 3:  # columns would be too narrow to read
        return "\n\n".join(_one(number, version) for number, version in enumerate(versions, 1))
    width = max(24, (shutil.get_terminal_size((100, 24)).columns - 3 * (len(versions) - 1)) // len(versions))
    lines = [_line([_heading(number, version) for number, version in enumerate(versions, 1)], width)]
    lines.append(_line(["─" * width] * len(versions), width))
    for cells in _aligned([_shown_lines(version) for version in versions]):
        differs = any(cell != cells[0] for cell in cells)
        wrapped = [[cell[at : at + width] for at in range(0, len(cell), width)] or [""] for cell in map(_text, cells)]
        for at in range(max(map(len, wrapped))):
            lines.append(_line([part[at] if at < len(part) else "" for part in wrapped], width, differs))
    return "\n".join(lines)


def _shown_lines(version: DocumentVersion) -> list[str]:
    return [visible(line) for line in (text_of(version.content) or title_of(version)).splitlines()]


def _aligned(texts: list[list[str]]) -> list[list[str | None]]:
    """Rows of one line of each text, or None: what the first shares with another stands beside it."""
    rows: list[list[str | None]] = [[line] for line in texts[0]]
    for count, text in enumerate(texts[1:], 1):
        merged: list[list[str | None]] = []
        base = [row[0] for row in rows]
        for _, a_from, a_to, b_from, b_to in difflib.SequenceMatcher(None, base, text, autojunk=False).get_opcodes():
            for row, line in zip_longest(rows[a_from:a_to], text[b_from:b_to]):
                merged.append([*(row or [None] * count), line])
        rows = merged
    return rows


def _text(cell: str | None) -> str:
    return cell or ""


def _line(cells: Sequence[str], width: int, differs: bool = False) -> str:
    return " │ ".join(_cell(cell, differs, width) for cell in cells).rstrip()


def _heading(number: int, version: DocumentVersion) -> str:
    return f"[{number}] {version.id[:SHORT]}  {when(version.mtime)}{'  here' if version.written_here else ''}"


def _one(number: int, version: DocumentVersion) -> str:
    body = visible_text(text_of(version.content) or title_of(version))
    return f"{click.style(_heading(number, version), bold=True)}\n{body}"


def _cell(text: str, differs: bool, width: int) -> str:
    text = text[:width]
    return (click.style(text, fg="yellow") if differs else text) + " " * (width - len(text))


def merge_draft(versions: Sequence[DocumentVersion]) -> str:
    """A text to begin a merge with: what all have once, what they do not have between marks, as in Git."""
    texts = [(version, text_of(version.content).splitlines()) for version in versions if version.content is not None]
    if not texts:
        return ""
    merged: list[str] = texts[0][1]
    before = texts[0][0].id[:SHORT]
    for version, lines in texts[1:]:
        merged = _merged(merged, before, lines, version.id[:SHORT])
    return "\n".join(merged) + "\n"


def _merged(a: list[str], a_name: str, b: list[str], b_name: str) -> list[str]:
    lines: list[str] = []
    for what, a_from, a_to, b_from, b_to in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if what == "equal":
            lines += a[a_from:a_to]
        else:
            lines += [f"{BEGIN} {a_name}", *a[a_from:a_to], "=======", *b[b_from:b_to], f"{END} {b_name}"]
    return lines


def has_marks(text: str, versions: Sequence[DocumentVersion]) -> bool:
    """Whether a mark of `merge_draft` is left. A line of `=======` alone is none: Markdown underlines headings so."""
    marks = {f"{mark} {version.id[:SHORT]}" for version in versions for mark in (BEGIN, END)}
    return any(line.rstrip() in marks for line in text.splitlines())


def print_markdown(text: str, terminal: bool) -> None:
    """On a terminal as it is meant; anywhere else byte for byte as it was written."""
    if not terminal:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    text = visible_text(text)
    Console().print(Markdown(text.replace("\n", "  \n")))  # a line of a note is a line: two blanks are a hard break
