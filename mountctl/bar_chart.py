"""Bars of `mountctl hist` as a picture in a PNG file, drawn by matplotlib (the extra `png`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from fsstore.query.hist import Bar
from fsstore.query.times import span_text
from mountctl.installation import missing
from mountctl.output import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 1_200, 600
"""Pixels of a picture."""
MOST_SPANS = 1_000
"""Spans of time in a picture: a bar has a pixel at least."""
MOST_COLOURS = 9
"""Labels with a colour of their own in bars over time; the others share one."""
MOST_BARS = 30
"""Bars of labels without times; the others are one bar."""
_DPI = 100
_LONGEST_LABEL, _LONGEST_TITLE = 40, 100
_FEW_SPANS = 200
"""Up to so many spans there is a gap between two bars."""
_BAR_SHARE = 0.85
_OTHERS_COLOUR = "0.7"
_NOTHING = "(none)"
"""The label of messages without a value."""


def require_library() -> None:
    """CommandError: matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise missing("matplotlib", "png")


def drawn(
    bars: Sequence[Bar], edges: Sequence[int], name: str, text_of: Callable[[Any], str], title: str
) -> Figure:  # fmt: skip
    """A picture of bars: over time if there are `edges` of spans in epoch milliseconds, those of one span upon each
    other, with a legend; else one for each label. `name` says what labels are ("": there are none), `text_of` how one
    is written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(_shown(title, _LONGEST_TITLE))
    counts: dict[str, int] = {}
    for bar in bars:
        if bar.messages:
            text = text_of(bar.label)
            counts[text] = counts.get(text, 0) + bar.messages
    if not counts:
        axes.text(0.5, 0.5, "no messages", ha="center", va="center", transform=axes.transAxes)
    if edges:
        _draw_times(axes, bars, edges, name, text_of, counts)
    elif counts:
        _draw_labels(axes, name, counts)
    return figure


def _draw_times(
    axes: Axes, bars: Sequence[Bar], edges: Sequence[int], name: str, text_of: Callable[[Any], str],
    counts: Mapping[str, int],
) -> None:  # fmt: skip
    """Bars over time, the label with the most messages at the bottom."""
    from matplotlib.ticker import MaxNLocator

    zone = datetime.fromtimestamp(edges[0] / 1000).astimezone().tzinfo
    span_ms = edges[1] - edges[0]
    first, others = _most(counts, MOST_COLOURS)
    rows = {text: row for row, text in enumerate(first)}
    heights = np.zeros((len(first) + bool(others), len(edges) - 1), np.int64)
    for bar in bars:
        if bar.messages and bar.time_ms is not None:
            heights[rows.get(text_of(bar.label), len(first)), (bar.time_ms - edges[0]) // span_ms] += bar.messages
    share = _BAR_SHARE if heights.shape[1] <= _FEW_SPANS else 1.0
    days = np.array([edge + part for edge in edges[:-1] for part in (0, span_ms * share)] + [edges[-1]]) / 86_400_000
    base = np.zeros(2 * heights.shape[1], np.int64)
    for row, own in enumerate(heights):
        top = base + np.ravel(np.column_stack((own, np.zeros_like(own))))
        colour = f"C{row}" if row < len(first) else _OTHERS_COLOUR
        axes.stairs(top, days, baseline=base, fill=True, antialiased=False, color=colour, label=f"label {row}")
        base = top
    axes.set_xlim(days[0], days[-1])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis_date(zone)
    axes.tick_params(axis="x", labelrotation=20)
    axes.set_xlabel(f"time ({datetime.now(zone):%Z})")
    axes.set_ylabel(f"messages in {span_text(span_ms)}")
    if name and counts:
        legend = axes.legend(title=_shown(name), loc="upper left", bbox_to_anchor=(1, 1), reverse=True)
        for written, text in zip(legend.get_texts(), [*_others_text(others), *reversed(first)], strict=True):
            written.set_text(_shown(text))


def _draw_labels(axes: Axes, name: str, counts: Mapping[str, int]) -> None:
    """A bar for each label, that with the most messages on top."""
    from matplotlib.ticker import MaxNLocator

    first, others = _most(counts, MOST_BARS)
    messages = [counts[text] for text in first] + [sum(counts[text] for text in others)] * bool(others)
    colours = ["C0"] * len(first) + [_OTHERS_COLOUR] * bool(others)
    drawn = axes.barh(range(len(messages)), messages, color=colours)
    axes.bar_label(drawn, [f"{count:,}" for count in messages], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("messages")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(_shown(name))
    axes.set_yticks(range(len(messages)), list(map(_shown, [*first, *_others_text(others)])))


def _most(counts: Mapping[str, int], most: int) -> tuple[list[str], list[str]]:
    """The labels with the most messages, and the others, if these are more than one."""
    ordered = sorted(counts, key=lambda text: (-counts[text], text))
    return (ordered, []) if len(ordered) <= most + 1 else (ordered[:most], ordered[most:])


def _others_text(others: Sequence[str]) -> list[str]:
    return [f"{len(others):,} others"] if others else []


def _shown(text: str, longest: int = _LONGEST_LABEL) -> str:
    """A text of a publisher's: dollar signs are no formulas in it."""
    shown = visible(text) or _NOTHING
    return (shown if len(shown) <= longest else f"{shown[: longest - 1]}…").replace("$", r"\$")
