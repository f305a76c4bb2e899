"""The growth curves as an SVG, drawn without a library: two panels, both axes logarithmic."""

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 460, 340
LEFT, TOP, RIGHT, BOTTOM = 60, 36, 120, 44
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e", "#6cc5b0", "#9498a0")
LABELS = {
    "mount_s": "mount",
    "last_s": "cat @last",
    "key_s": "newest key",
    "names_s": "100 names",
    "middle_s": "read in .log",
    "append_s": "append",
    "stat_s": "first stat",
    "count_s": "first count(*)",
    "recount_s": "next count(*)",
}
LABEL_GAP = 13
FONT = 'font-family="sans-serif" font-size="11"'


def growth_plot(sizes: Sequence[dict[str, Any]], queues: Sequence[dict[str, Any]]) -> str:
    """An SVG document; points as `asdict(Point)`."""
    panels = panel(sizes, "messages", 0) + panel(queues, "queues", WIDTH)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" {FONT}>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{panels}</svg>\n'
    )


class Scale:
    """A logarithmic axis from values to positions."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        self.first, self.last = math.floor(low + 1e-9), max(math.ceil(high - 1e-9), math.floor(low + 1e-9) + 1)
        self._begin, self._step = begin, (end - begin) / (self.last - self.first)

    def __call__(self, value: float) -> float:
        return self._begin + (math.log10(value) - self.first) * self._step

    def ticks(self) -> list[float]:
        """Powers of ten."""
        return [10.0**power for power in range(self.first, self.last + 1)]


def panel(points: Sequence[dict[str, Any]], along: str, left: int) -> str:
    """One plot: a curve for each thing, over `along`."""
    x = Scale([point[along] for point in points], left + LEFT, left + WIDTH - RIGHT)
    times = [1e3 * point[name] for point in points for name in LABELS]
    y = Scale(times, HEIGHT - BOTTOM, TOP)
    parts = [text(left + LEFT, TOP - 16, f"milliseconds, by number of {along}")]
    parts += [text(x(tick), HEIGHT - BOTTOM + 16, f"{tick:,.0f}", "middle") for tick in x.ticks()]
    for tick in y.ticks():
        across = f'x1="{left + LEFT}" x2="{left + WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"'
        parts.append(f'<line {across} stroke="#ddd"/>')
        parts.append(text(left + LEFT - 6, y(tick) + 4, f"{tick:g}", "end"))
    ends = label_positions({name: y(1e3 * points[-1][name]) for name in LABELS})
    for (name, label), colour in zip(LABELS.items(), COLOURS, strict=True):
        path = " ".join(f"{x(point[along]):.1f},{y(1e3 * point[name]):.1f}" for point in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(left + WIDTH - RIGHT + 8, ends[name] + 4, label, colour=colour))
    return "\n".join(parts) + "\n"


def label_positions(wanted: dict[str, float]) -> dict[str, float]:
    """Heights of labels beside the curves' ends, pushed apart where they would overlap."""
    placed: dict[str, float] = {}
    last = -math.inf
    for name, height in sorted(wanted.items(), key=lambda item: item[1]):
        last = placed[name] = max(height, last + LABEL_GAP)
    return placed


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'
