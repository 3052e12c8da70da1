"""Small plots as SVG, without a library: stacked areas and columns over time, and bars.

Every function takes numbers and a width in pixels and gives markup. Colours and letters come from the page's style
sheet, by class, so light and dark are its business. Whatever text goes in is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

HEIGHT = 220
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 26
BAR, GAP = 18, 22
TIME_LABEL = 64
"""So much room a label of the time axis needs."""

Format = Callable[[float], str]
Series = Mapping[str, Sequence[float]]
"""Numbers by the class that gives them their colour."""


def short(number: float) -> str:
    """A number as an axis has it: 1.5k, 20M."""
    for power, letter in ((9, "G"), (6, "M"), (3, "k")):
        if abs(number) >= 10**power:
            return f"{number / 10**power:.3g}{letter}"
    return f"{number:.3g}"


def ticks(top: float, count: int = 4) -> list[float]:
    """Round numbers from zero to at least `top`."""
    if top < 1:
        return [0, 1]
    raw = top / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    step = max(1, step)
    return [step * number for number in range(math.ceil(top / step * 0.999) + 1)]


def areas(times: Sequence[int], series: Series, width: int, label: str) -> str:
    """Stacked areas: the sum of all series over time, and the share of each."""
    top = max((sum(values) for values in zip(*series.values(), strict=True)), default=0)
    frame = _Frame(times, top, 0, width)
    below, shapes = [0.0] * len(times), []
    for name, values in series.items():
        above = [low + value for low, value in zip(below, values, strict=True)]
        edge = [f"{frame.x(at):.1f},{frame.y(value):.1f}" for at, value in enumerate(above)]
        back = [f"{frame.x(at):.1f},{frame.y(value):.1f}" for at, value in reversed(list(enumerate(below)))]
        shapes.append(f'<polygon class="area {escape(name)}" points="{" ".join(edge + back)}"/>')
        shapes.append(f'<polyline class="line {escape(name)}" points="{" ".join(edge)}"/>')
        below = above
    return frame.around("".join(shapes), label)


def columns(times: Sequence[int], up: Series, down: Series, width: int, label: str) -> str:
    """Columns over time, some upwards and some downwards from zero, each with what it stands for as a tooltip."""
    top, bottom = (max((sum(v) for v in zip(*s.values(), strict=True)), default=0) for s in (up, down))
    frame = _Frame(times, top, bottom, width)
    room = frame.step
    thick = max(1.0, min(room * 0.8, 40))
    shapes = []
    for sign, series in ((1, up), (-1, down)):
        level = [0.0] * len(times)
        for name, values in series.items():
            for at, value in enumerate(values):
                if value:
                    low, high = frame.y(sign * level[at]), frame.y(sign * (level[at] + value))
                    level[at] += value
                    shapes.append(
                        f'<rect class="{escape(name)}" x="{frame.x(at) - thick / 2:.1f}" y="{min(low, high):.1f}" '
                        f'width="{thick:.1f}" height="{max(0.5, abs(high - low)):.1f}">'
                        f"<title>{escape(day(times[at]))}: {value:,.0f} {escape(name)}</title></rect>"
                    )
    return frame.around("".join(shapes), label)


def bars(rows: Sequence[tuple[str, str, Mapping[str, float]]], said: Format, width: int, label: str) -> str:
    """A bar a row, made of parts, under its name and what there is to say of it. The longest takes all the room."""
    longest = max([1, *(sum(parts.values()) for _, _, parts in rows)])
    height = len(rows) * (BAR + GAP) + 2
    shapes = []
    for number, (name, value, parts) in enumerate(rows):
        top = number * (BAR + GAP)
        room = max(8, int((width - 16) / 7.2) - len(value))
        shown = name if len(name) <= room else name[: room - 1] + "…"
        shapes.append(
            f'<text class="name" x="0" y="{top + 14}">{escape(shown)}<title>{escape(name)}</title></text>'
            f'<text class="value" x="{width}" y="{top + 14}">{escape(value)}</text>'
            f'<rect class="track" x="0" y="{top + 20}" width="{width}" height="{BAR - 6}" rx="3"/>'
        )
        left = 0.0
        for part, number_of in parts.items():
            long = number_of / longest * width
            if long > 0:
                shapes.append(
                    f'<rect class="{escape(part)}" x="{left:.1f}" y="{top + 20}" width="{max(long, 1):.1f}" '
                    f'height="{BAR - 6}" rx="3"><title>{escape(part)}: {escape(said(number_of))}</title></rect>'
                )
            left += long
    return _svg("".join(shapes), width, height, label)


def day(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%-d %b %Y")


class _Frame:
    """Axes: where a number and a time are in the picture."""

    def __init__(self, times: Sequence[int], top: float, bottom: float, width: int) -> None:
        self._times, self._width = times, width
        self._up = ticks(top)
        self._down = ticks(bottom)[1:] if bottom > 0 else []
        if self._down:  # the same steps on both sides
            step = max(self._up[1], self._down[0])
            self._up = [step * number for number in range(math.ceil(top / step) + 1)]
            self._down = [step * number for number in range(1, math.ceil(bottom / step) + 1)]
        self._high, self._low = self._up[-1], -self._down[-1] if self._down else 0.0
        self.step = (width - LEFT - RIGHT) / max(1, len(times))

    def x(self, at: int) -> float:
        return LEFT + (at + 0.5) * self.step

    def y(self, value: float) -> float:
        share = (self._high - value) / ((self._high - self._low) or 1)
        return TOP + share * (HEIGHT - TOP - BOTTOM)

    def around(self, shapes: str, label: str) -> str:
        return _svg(self._levels() + shapes + self._dates(), self._width, HEIGHT, label)

    def _levels(self) -> str:
        lines = []
        for value in (*self._up, *(-number for number in self._down)):
            y = self.y(value)
            kind = "zero" if value == 0 else "level"
            lines.append(
                f'<line class="{kind}" x1="{LEFT}" x2="{self._width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}">{short(abs(value))}</text>'
            )
        return "".join(lines)

    def _dates(self) -> str:
        """As many labels as fit, none over the edge."""
        if not self._times:
            return ""
        span = self._times[-1] - self._times[0]
        form = "%b %Y" if span > 200 * 86_400 else "%-d %b" if span > 2 * 86_400 else "%H:%M"
        said = [datetime.fromtimestamp(time, UTC).strftime(form) for time in self._times]
        texts, free = [], 0.0
        for at, text in enumerate(said):
            x = self.x(at)
            if (at == 0 or text != said[at - 1]) and x >= free and x <= self._width - TIME_LABEL / 2:
                texts.append(f'<text class="date" x="{max(x, LEFT + 14):.1f}" y="{HEIGHT - 6}">{text}</text>')
                free = x + TIME_LABEL
        return "".join(texts)


def _svg(inside: str, width: int, height: int, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )
