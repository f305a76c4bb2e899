"""mountctl profile: counts a mount's requests by operation, with their durations."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from mountctl.errors import CommandError
from mountctl.output import plural, print_json, print_table
from mountctl.places import find_mount

LOOK_S = 0.05
"""Interval between two reads of the log."""
_TITLES = ("OPERATION", "COUNT", "ERRORS", "MEAN", "P50", "P99", "TOTAL")


@click.command("profile", short_help="Show which requests a mount gets, and how long they take.")
@click.argument("place")
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(0.1, 3600), help="Duration.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; times are in seconds.")
def command(place: str, seconds: float, as_json: bool) -> None:
    """Count a mount's requests from now on, by operation, with their durations. Ctrl-C shows the result so far.

    \b
    Example:
      mountctl profile /mnt/mq --seconds 1
    """
    mount = find_mount(place)
    profile = Profile()
    began_s = time.monotonic()
    try:
        for line in log_lines(mount.mountpoint, began_s + seconds):
            profile.take(line)
    except KeyboardInterrupt:
        pass
    looked_s = time.monotonic() - began_s
    if as_json:
        print_json({"seconds": round(looked_s, 3), "dropped": profile.dropped, "operations": profile.as_json()})
        return
    print_table(_TITLES, profile.rows())
    count = sum(figures.count for figures in profile.operations.values())
    click.echo(f"\n{plural(count, 'request')} in {looked_s:.1f} s; times in milliseconds")
    if profile.dropped:
        click.echo(f"{plural(profile.dropped, 'request')} more came too fast to be counted", err=True)


def log_lines(mountpoint: Path, until_s: float) -> Iterator[bytes]:
    """Lines of `@store/accesslog` from now on. CommandError: it can't be read."""
    path = mountpoint / "@store" / "accesslog"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        reason = f"{mountpoint} has no access log"
        raise CommandError(reason, "its daemon only reads the store, or is of an older version", os.EX_USAGE) from None
    try:
        rest = b""
        while time.monotonic() < until_s:
            try:
                text = os.read(descriptor, 1 << 20)
            except BlockingIOError:
                time.sleep(min(LOOK_S, max(until_s - time.monotonic(), 0)))
                continue
            if not text:  # the mount has ended
                return
            *lines, rest = (rest + text).split(b"\n")
            yield from lines
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Figures:
    """Durations of one operation's requests."""

    micros: Counter[int] = field(default_factory=Counter)
    """Number of requests by duration in microseconds."""
    errors: int = 0

    @property
    def count(self) -> int:
        """Number of requests, failed ones included."""
        return self.micros.total()

    @property
    def total_s(self) -> float:
        """Sum of the durations."""
        return sum(micros * count for micros, count in self.micros.items()) / 1e6

    def quantile_s(self, share: float) -> float:
        """The duration that `share` of the requests did not exceed."""
        left = math.ceil(share * self.count)
        for micros, count in sorted(self.micros.items()):
            left -= count
            if left <= 0:
                return micros / 1e6
        return 0.0

    def times_s(self) -> dict[str, float]:
        """Mean, quantiles and total."""
        return {
            "mean": round(self.total_s / self.count, 7),
            "p50": self.quantile_s(0.5),
            "p99": self.quantile_s(0.99),
            "total": round(self.total_s, 6),
        }


class Profile:
    """Requests by operation."""

    def __init__(self) -> None:
        self.operations: defaultdict[str, Figures] = defaultdict(Figures)
        self.dropped = 0
        """Number of requests that were not logged for lack of room."""

    def take(self, line: bytes) -> None:
        """Count one line of the log."""
        words = line.decode(errors="replace").split(" ")
        if words[0] == "#":
            self.dropped += int(words[1])
            return
        _, _, _, _, operation, _, _, _, result, seconds = words
        figures = self.operations[operation]
        figures.micros[round(float(seconds) * 1e6)] += 1
        figures.errors += result != "OK"

    def as_json(self) -> dict[str, dict[str, float]]:
        """Figures by operation; the operation with the largest total is first."""
        return {
            operation: {"count": figures.count, "errors": figures.errors, **figures.times_s()}
            for operation, figures in self._by_total()
        }

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The same as rows of a table."""
        for operation, figures in self._by_total():
            times_ms = (f"{seconds * 1000:,.3f}" for seconds in figures.times_s().values())
            yield operation, f"{figures.count:,}", f"{figures.errors:,}", *times_ms

    def _by_total(self) -> Iterable[tuple[str, Figures]]:
        return sorted(self.operations.items(), key=lambda item: -item[1].total_s)
