"""The daemon's log: a record is one line, with any names and texts in it."""

from __future__ import annotations

import io
import logging

from mountctl.log_file import LogFormatter


def logged(message: str, *arguments: object, error: Exception | None = None) -> list[str]:
    """The lines of one record."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LogFormatter())
    record = logging.LogRecord("fsstore", logging.WARNING, "here.py", 1, message, arguments, None)
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    handler.emit(record)
    return out.getvalue().splitlines()


def test_a_name_forges_no_line_and_moves_no_cursor() -> None:
    (line,) = logged("files in %s/drop are not published", "nl\n2026-11-27 CRITICAL forged \x1b[31m\udcff")
    assert line.endswith(r"WARNING files in nl\n2026-11-27 CRITICAL forged \x1b[31m\udcff/drop are not published")


def test_what_an_error_says_forges_no_line_either() -> None:
    try:
        raise ValueError("one\n2026-11-27 00:00:00 CRITICAL forged \x1b[31m")
    except ValueError as error:
        first, *rest = logged("it failed", error=error)
    assert first.endswith(" WARNING it failed")
    assert rest[-1] == r"  2026-11-27 00:00:00 CRITICAL forged \x1b[31m"
    assert all(line.startswith("  ") for line in rest)
