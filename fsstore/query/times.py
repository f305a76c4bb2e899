"""Times and spans of time as people write them: 2026-01-31T09:30, @1769848200000, -1h30m; 1m."""

from __future__ import annotations

import re
import time

from fsstore.tree.names import parse_time_ms

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = r"(\d{1,12})(ms|[smhdw])"
_SPAN = re.compile(f"(?:{_PART})+")


def parse_span_ms(text: str) -> int | None:
    """Milliseconds of a span like 90s or 1d12h; None: it is none."""
    if not _SPAN.fullmatch(text):
        return None
    return sum(int(number) * _UNITS_MS[unit] for number, unit in re.findall(_PART, text))


def span_text(span_ms: int) -> str:
    """A span of 1 ms or more as `parse_span_ms` takes it: 1d12h."""
    parts = []
    for unit, unit_ms in sorted(_UNITS_MS.items(), key=lambda one: -one[1]):
        number, span_ms = divmod(span_ms, unit_ms)
        parts += [f"{number}{unit}"] * bool(number)
    return "".join(parts)


def parse_moment_ms(text: str, now_ms: int | None = None) -> int | None:
    """Epoch milliseconds of a time; None: it is none. A span behind a minus is before `now_ms`, by default now."""
    if text.startswith("-"):
        span_ms = parse_span_ms(text[1:])
        return None if span_ms is None else max((now_ms or time.time_ns() // 1_000_000) - span_ms, 0)
    return parse_time_ms(text.removeprefix("@").encode(errors="surrogateescape"))
