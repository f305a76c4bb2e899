"""The list of scenarios, and how one is run."""

import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop import bytewise, follow, live, ours, theirs, through_mount
from tests.interop.compare import Tally
from tests.interop.room import Room
from tests.interop.toolchain import BUILD, LINES, Line

FIRST_SEED = 17


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison; `lines` are the lines of RocketMQ that know what it is about."""

    title: str
    run: Callable[[Room], None]
    lines: tuple[str, ...] = ("v4", "v5")


SCENARIOS = (
    Scenario("they write, we read: every kind of message, closed", theirs.clean),
    Scenario("they write, we read: killed in the middle of puts", theirs.killed),
    Scenario("they write, we read: bodies up to 4 MiB", theirs.large_bodies),
    Scenario("they write, we read: one put to several queues (LMQ)", theirs.light_queues),
    Scenario("they write, we read: topic names over 127 bytes", theirs.long_topics, ("v5",)),
    Scenario("they write, we read: checksums in properties", theirs.property_crc, ("v5",)),
    Scenario("they write, we read through a mount: files, attributes, keys", through_mount.mounted_read_only),
    Scenario("they write, we read: a broker with real clients", live.broker_and_clients),
    Scenario("we write, they read: closed, then three turns each", ours.clean),
    Scenario("we write, they read: killed, then three turns each", ours.killed),
    Scenario("we write, they read: killed in a file roll, no new file", ours.killed_before_new_file),
    Scenario("we write, they read: killed in a file roll, new file", ours.killed_after_new_file),
    Scenario("followed while a broker writes: rolled and expired files, new topics", follow.follow_broker),
    Scenario("byte for byte: log, consume queues, index", bytewise.equal_files),
)


@dataclass(slots=True)
class Result:
    """How one scenario went with one line."""

    version: str
    title: str
    tally: Tally
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether something was compared and all of it was equal."""
        return not self.tally.differences and self.tally.messages > 0


@dataclass(slots=True)
class LineRun:
    """All scenarios of one line, one after the other, in folders below `base`."""

    line: Line
    base: Path
    first_seed: int = FIRST_SEED
    own_warnings: dict[bool, set[str]] = field(default_factory=dict)

    def run(self, scenario: Scenario) -> Result:
        """Run one. A failure of any kind is a difference; its folder is kept for whoever looks into it."""
        folder = Path(tempfile.mkdtemp(prefix=f"{scenario.run.__name__}-", dir=self.base))
        seed = self.first_seed + SCENARIOS.index(scenario)
        room = Room(self.line, folder, seed, own_warnings=self.own_warnings)
        began = time.monotonic()
        try:
            scenario.run(room)
        except Exception:  # an error is a result, and the other scenarios still run
            room.tally.differences.append(traceback.format_exc())
        result = Result(self.line.version, scenario.title, room.tally, time.monotonic() - began)
        if result.passed:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            room.tally.differences.append(f"its files: {folder}")
        return result


def run_line(name: str, chosen: str, first_seed: int) -> list[Result]:
    """Every scenario of the line called `name` whose title has `chosen` in it; says each result at once."""
    line = next(line for line in LINES if line.name == name)
    base = BUILD / "work" / name
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    runs = LineRun(line, base, first_seed)
    results = []
    for scenario in SCENARIOS:
        if name in scenario.lines and chosen in scenario.title:
            result = runs.run(scenario)
            print(sentence(result), flush=True)
            results.append(result)
    return results


def sentence(result: Result) -> str:
    """A result in a line; its first differences below it."""
    verdict = "ok    " if result.passed else "FAILED"
    tally = result.tally
    text = (
        f"{verdict} {result.version}  {result.title}: {tally.messages} messages, {tally.queries} queries, "
        f"{len(tally.differences)} different ({result.seconds:.1f} s)"
    )
    return "\n".join(
        [text, *(f"    {difference}" for difference in tally.differences[:5] + tally.differences[5:][-2:])]
    )
