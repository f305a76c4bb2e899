"""HTML from templates, in which everything is escaped, and the headers of each answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fsstore.serve.connection import Answer
from fsstore.serve.page.body import preview_of

STATIC = Path(__file__).parent.parent / "static"
STATIC_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SAFE = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_PAGE = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", POLICY),
    ("Cache-Control", "no-store"),
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Characters that can't be seen, or that change the order of others."""


def visible(text: str) -> str:
    """The text with hidden characters as numbers."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def human_size(size_bytes: int) -> str:
    """1536 -> 1.5 KiB."""
    size, units = float(size_bytes), list(_UNITS)
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size_bytes:,} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def human_time(time_ms: int | None) -> str:
    """Epoch milliseconds as local time, to the millisecond."""
    if time_ms is None:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"@{time_ms}"  # a publisher may have set the clock


def human_span(span_ms: int) -> str:
    """5000 -> 5 s."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if span_ms >= unit_ms:
            return f"{span_ms // unit_ms} {unit}"
    return f"{span_ms / 1000:g} s"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.1f}"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (visible, human_size, human_time, human_span, preview_of)
    made.filters |= {one.__name__: one for one in filters} | {"number": lambda number: f"{number:,}", "rate": _rate}
    made.globals["static"] = {name: f"/page/static/{name}?v={digest}" for name, (_, digest) in static_files().items()}
    return made


def render(template: str, values: Mapping[str, Any], status: int = 200) -> Answer:
    """The page that a template makes of the values."""
    html = _environment().get_template(template).render(values)
    return Answer(status, [*_PAGE, *SAFE], body=html.encode("utf-8", "replace"))


def load_templates() -> None:
    """Compile all templates, so that no request waits for it."""
    for name in _environment().list_templates():
        _environment().get_template(name)


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """The content and the digest of each file of `static`."""
    contents = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in STATIC_TYPES}
    return {name: (content, sha256(content).hexdigest()[:16]) for name, content in contents.items()}


def static_answer(name: str) -> Answer | None:
    """A file of `static`; None: there is none. Its link changes with it."""
    found = static_files().get(name)
    if found is None:
        return None
    kind = STATIC_TYPES[Path(name).suffix]
    return Answer(200, [("Content-Type", kind), ("Cache-Control", "max-age=31536000, immutable"), *SAFE], body=found[0])
