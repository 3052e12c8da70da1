"""Times, spans and sizes as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from anabranch.core.nip19 import parse_public, parse_secret
from anabranch.core.nostr import KIND_MAX, TIMESTAMP_MAX, Invalid

_SPANS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SIZES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _SIZES |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}


class Span(click.ParamType):
    name = "span"

    def convert(self, value: Any, parameter: Any, context: Any) -> int:
        found = re.fullmatch(r"([0-9]{1,9})([smhdw])", str(value).strip().lower())
        if found is None or not int(found[1]):
            self.fail(f"{value!r} is no span of time; write it like 30d, 12h, 90m or 45s", parameter, context)
        return int(found[1]) * _SPANS[found[2]]


class Size(click.ParamType):
    name = "size"

    def convert(self, value: Any, parameter: Any, context: Any) -> int:
        found = re.fullmatch(r"([0-9]{1,15})(?:\s*([a-z]{0,3}))", str(value).strip().lower())
        if found is None or found[2] not in _SIZES:
            self.fail(f"{value!r} is no size; write it like 100MB, 1GiB or 500000", parameter, context)
        return int(found[1]) * _SIZES[found[2]]


class Time(click.ParamType):
    """Unix seconds, or a date, or a date and time (UTC where it names no zone)."""

    name = "time"

    def convert(self, value: Any, parameter: Any, context: Any) -> int:
        text = str(value).strip()
        if text.isascii() and text.isdecimal() and int(text) <= TIMESTAMP_MAX:
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{value!r} is no time; write unix seconds or 2024-05-31 or 2024-05-31T12:00", parameter, context)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


class Kinds(click.ParamType):
    name = "kinds"

    def convert(self, value: Any, parameter: Any, context: Any) -> frozenset[int]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdecimal() and int(part) <= KIND_MAX for part in parts):
            self.fail(f"{value!r} is no list of kinds; write it like 1,42061", parameter, context)
        return frozenset(map(int, parts))


class PublicKeys(click.ParamType):
    name = "pubkeys"

    def convert(self, value: Any, parameter: Any, context: Any) -> frozenset[str]:
        try:
            return frozenset(parse_public(part) for part in str(value).split(","))
        except Invalid as error:
            self.fail(f"{value!r}: {error}", parameter, context)


class SecretKey(click.ParamType):
    """A secret key as people pass it on, or a file that has it; in hex."""

    name = "key"

    def convert(self, value: Any, parameter: Any, context: Any) -> str:
        try:
            file = Path(str(value))
            return parse_secret(file.read_text() if file.is_file() else str(value)).hex()
        except (Invalid, OSError, UnicodeError):
            self.fail(
                "it takes a secret key (nsec1… or 64 hexadecimal digits) or a file that has one", parameter, context
            )


class Master(click.ParamType):
    """Where Spark runs, in the words that it knows."""

    name = "master"

    def convert(self, value: Any, parameter: Any, context: Any) -> str:
        if not re.fullmatch(r"local|local\[.+\]|local-cluster\[.+\]|yarn|(spark|k8s)://.+", str(value)):
            self.fail(
                f"{value!r} is no place for Spark; write local[2], spark://host:7077, yarn or k8s://…",
                parameter,
                context,
            )
        return str(value)


class Names(click.ParamType):
    name = "names"

    def convert(self, value: Any, parameter: Any, context: Any) -> frozenset[str]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(parts):
            self.fail(f"{value!r}: one of the names is empty", parameter, context)
        return frozenset(parts)


def date(unix_seconds: int | None) -> str:
    return "never" if unix_seconds is None else datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
