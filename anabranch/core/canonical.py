"""Canonical JSON (RFC 8785): one value, one text, whoever writes it.

Members stand in the order of their names' UTF-16 code units, numbers as ECMAScript prints them, strings with no escape
that is not needed, and no white space. So equal values have equal hashes on every device. What JSON cannot carry
exactly (a lone surrogate, a number that a double cannot hold, NaN) is refused, never rounded.
"""

from __future__ import annotations

import json
import math
from typing import Any

from anabranch.core.nostr import Invalid

INTEGER_MAX = 9_007_199_254_740_991
"""2^53 − 1: beyond it, a double no longer tells neighbours apart."""


def encode(value: Any) -> str:
    """The canonical text of a value made of dict, list, tuple, str, int, float, bool and None."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int():
            if abs(value) > INTEGER_MAX:
                raise Invalid(f"canonical JSON: {value} is beyond what a double holds exactly")
            return str(value)
        case float():
            return _number(value)
        case list() | tuple():
            return "[" + ",".join(map(encode, value)) + "]"
        case dict():
            if not all(isinstance(name, str) for name in value):
                raise Invalid("canonical JSON: the names of an object are strings")
            members = sorted(value, key=_utf16)
            return "{" + ",".join(f"{_string(name)}:{encode(value[name])}" for name in members) + "}"
    raise Invalid(f"canonical JSON: a {type(value).__name__} is no JSON value")


def decode(text: str) -> Any:
    """The value of a JSON text, such that `encode` can write it again: a number that a double rounds is that double."""
    try:
        return json.loads(text, parse_int=_integer, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Invalid("this is no JSON") from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= 15 or abs(int(digits)) <= INTEGER_MAX else float(digits)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid("canonical JSON: a lone surrogate is no character") from None
    return json.dumps(text, ensure_ascii=False)


def _number(value: float) -> str:
    """As ECMAScript's Number::toString: the shortest digits that read back as the same double."""
    if not math.isfinite(value):
        raise Invalid("canonical JSON: a number is finite")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, power = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(power or 0) - (len(whole + fraction) - len(digits))  # where it stands in `digits`
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    exponent = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return sign + digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "") + exponent
