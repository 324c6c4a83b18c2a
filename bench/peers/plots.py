"""Bars as SVG, readable on light and on dark pages: no background, colours between the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 720, 150, 120
BAR, STEP, TOP, BOTTOM = 18, 26, 58, 34
TEXT, FAINT = "#808890", "#80889066"
OURS, THEIRS, FLOOR = "#2f81f7", "#8b949e", "#b08800"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


@dataclass(frozen=True)
class Bar:
    label: str
    figure: float | None
    """None where there is none; `note` says why."""
    colour: str = THEIRS
    low: float | None = None
    high: float | None = None
    note: str = ""


def bars(title: str, under: str, found: Sequence[Bar], shown: Callable[[float], str], foot: str = "") -> str:
    """Horizontal bars from zero, each with its label and figure, and a line from lowest to highest."""
    height = TOP + STEP * len(found) + BOTTOM
    most = max((max(bar.figure or 0, bar.high or 0) for bar in found), default=0) or 1
    room = WIDTH - LEFT - RIGHT
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' "
        f"height='{height}' role='img' aria-label='{_attribute(title)}' {FONT} font-size='13'>",
        f"<title>{escape(title)}</title>",
        _text(12, 24, title, size=16, weight=600),
        _text(12, 44, under, size=12),
        f"<path d='M{LEFT} {TOP - 4}V{TOP + STEP * len(found)}' stroke='{FAINT}'/>",
    ]
    for number, bar in enumerate(found):
        parts += _bar(bar, TOP + STEP * number, room / most, shown)
    parts += [_text(12, height - 12, foot, size=11), "</svg>"]
    return "\n".join(parts) + "\n"


def _bar(bar: Bar, top: int, scale: float, shown: Callable[[float], str]) -> list[str]:
    middle = top + BAR / 2
    parts = [_text(LEFT - 10, middle + 4, bar.label, anchor="end", weight=600 if bar.colour == OURS else 400)]
    if bar.figure is None:
        return [*parts, _text(LEFT + 8, middle + 4, bar.note or "–", size=12)]
    length = max(1.0, bar.figure * scale)
    parts.append(
        f"<rect x='{LEFT}' y='{top}' width='{length:.1f}' height='{BAR}' rx='2' fill='{bar.colour}'/>"
    )
    end = length
    if bar.low is not None and bar.high is not None and bar.high > bar.low:
        low, end = bar.low * scale, max(length, bar.high * scale)
        line = f"M{LEFT + low:.1f} {middle}H{LEFT + bar.high * scale:.1f}"
        parts.append(f"<path d='{line}' stroke='{TEXT}' stroke-width='2' stroke-opacity='0.7'/>")
    parts.append(_text(LEFT + end + 8, middle + 4, shown(bar.figure)))
    return parts


def _text(x: float, y: float, text: str, *, size: int = 13, weight: int = 400, anchor: str = "start") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' fill='{TEXT}' font-size='{size}' font-weight='{weight}' "
        f"text-anchor='{anchor}'>{escape(text)}</text>"
    )


def _attribute(text: str) -> str:
    return escape(text, {"'": "&apos;"})
