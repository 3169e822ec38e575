"""Plots as SVG, made of text alone: lines over time and bars. It knows numbers and labels."""

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 36, 38, 34
_COLOURS = ("#2563eb", "#db2777", "#059669", "#d97706", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_TICKS = 4
_FONT = "font-family='system-ui, sans-serif' font-size='11'"

Points = Sequence[tuple[float, float]]


def lines(
    title: str, series: Sequence[tuple[str, Points]], labels: Sequence[tuple[float, str]] = ()
) -> str:
    """Return a plot of lines; ``labels`` are places on the x axis."""
    points = [point for _, each in series for point in each]
    if not points:
        return _frame(title, "", 0, 1)
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = _nice(max(y for _, y in points))
    drawn = []
    for at, (name, each) in enumerate(series):
        colour = _COLOURS[at % len(_COLOURS)]
        path = " ".join(f"{_x(x, low, high):.1f},{_y(y, top):.1f}" for x, y in each)
        drawn.append(
            f"<polyline fill='none' stroke='{colour}' stroke-width='1.5' points='{path}'/>"
        )
        drawn.append(_legend(at, name, colour))
    for x, label in labels:
        drawn.append(
            f"<text x='{_x(x, low, high):.1f}' y='{HEIGHT - 14}' text-anchor='middle' {_FONT} "
            f"fill='#555'>{escape(label)}</text>"
        )
    return _frame(title, "".join(drawn), 0, top)


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Return a plot of bars, each with its name."""
    if not values:
        return _frame(title, "", 0, 1)
    top = _nice(max(value for _, value in values))
    step = (WIDTH - _LEFT - _RIGHT) / len(values)
    drawn = []
    for at, (name, value) in enumerate(values):
        x, y = _LEFT + at * step + step * 0.15, _y(value, top)
        drawn.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{step * 0.7:.1f}' "
            f"height='{max(0.0, HEIGHT - _BOTTOM - y):.1f}' fill='{_COLOURS[0]}'>"
            f"<title>{escape(name)}: {value:g}</title></rect>"
            f"<text x='{x + step * 0.35:.1f}' y='{HEIGHT - 14}' text-anchor='middle' {_FONT} "
            f"fill='#555'>{escape(_short(name, step))}</text>"
        )
    return _frame(title, "".join(drawn), 0, top)


def _frame(title: str, inside: str, low: float, high: float) -> str:
    grid = []
    for tick in range(_TICKS + 1):
        value = low + (high - low) * tick / _TICKS
        y = _y(value, high)
        grid.append(
            f"<line x1='{_LEFT}' x2='{WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#e5e7eb'/>"
            f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end' {_FONT} fill='#555'>"
            f"{_number(value)}</text>"
        )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' "
        f"width='{WIDTH}' height='{HEIGHT}' role='img'><title>{escape(title)}</title>"
        f"<rect width='100%' height='100%' fill='white'/>"
        f"<text x='{_LEFT}' y='16' {_FONT} font-weight='600' fill='#111'>{escape(title)}</text>"
        f"{''.join(grid)}{inside}</svg>"
    )


def _legend(at: int, name: str, colour: str) -> str:
    x = WIDTH - _RIGHT - 510 + 130 * (at % 4)
    y = 16 + 12 * (at // 4)
    return (
        f"<rect x='{x}' y='{y - 8}' width='9' height='9' fill='{colour}'/>"
        f"<text x='{x + 13}' y='{y}' {_FONT} fill='#333'>{escape(name[:18])}</text>"
    )


def _x(value: float, low: float, high: float) -> float:
    span = high - low or 1
    return _LEFT + (value - low) / span * (WIDTH - _LEFT - _RIGHT)


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - value / (top or 1) * (HEIGHT - _TOP - _BOTTOM)


def _nice(value: float) -> float:
    """Return a round number not below a value, whose quarters are round too."""
    if value <= 0:
        return 1
    unit: float = 10 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 4, 6, 8, 10) if unit * step >= value)


def _number(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _short(name: str, step: float) -> str:
    """Return what fits of a name: its end, which tells names of one group apart."""
    most = max(3, int(step / 6.5))
    return name if len(name) <= most else f"…{name[1 - most :]}"
