"""The list of scenarios, and how one is run."""

import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop import (
    bytewise,
    copied_load,
    copying,
    defaults,
    feeding,
    follow,
    kinds,
    live,
    ours,
    outliving,
    sharing,
    theirs,
    through_mount,
    traces,
)
from tests.interop.compare import Tally
from tests.interop.driver import DriverError, LoadRefusedError
from tests.interop.room import Room
from tests.interop.toolchain import BUILD, LINES, Line

FIRST_SEED = 17


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison; `lines` are the lines of RocketMQ that know what it is about.

    Scenarios of one `group` run one after the other, groups side by side: RocketMQ's own pauses are most of the time.
    """

    title: str
    group: str
    run: Callable[[Room], None]
    lines: tuple[str, ...] = ("v4", "v5")


READ = "they write, we read"
WRITE = "we write, they read"
SCENARIOS = (
    Scenario(f"{READ}: every kind of message, closed", "theirs", theirs.clean),
    Scenario(f"{READ}: killed in the middle of puts", "theirs", theirs.killed),
    Scenario(f"{READ}: bodies up to 4 MiB", "theirs", theirs.large_bodies),
    Scenario(f"{READ}: one put to several queues (LMQ)", "theirs", theirs.light_queues),
    Scenario(f"{READ}: topic names over 127 bytes", "theirs", theirs.long_topics, ("v5",)),
    Scenario(f"{READ}: checksums in properties", "theirs", theirs.property_crc, ("v5",)),
    Scenario(f"{READ} through a mount: files, attributes, keys", "theirs", through_mount.mounted_read_only),
    Scenario(f"{READ}: a broker with real clients", "live", live.broker_and_clients),
    Scenario(f"{WRITE}: closed, then three turns each", "ours", ours.clean),
    Scenario(f"{WRITE}: killed, then three turns each", "ours", ours.killed),
    Scenario(f"{WRITE}: killed in a file roll, no new file", "ours", ours.killed_before_new_file),
    Scenario(f"{WRITE}: killed in a file roll, new file", "ours", ours.killed_after_new_file),
    Scenario(f"{READ}: what real clients leave", "default", traces.real_clients, ("v5",)),
    Scenario("a consumer group, of a client and of mountctl consume in turns", "live", sharing.in_turns),
    Scenario("byte for byte: log, consume queues, index", "live", bytewise.equal_files),
    Scenario("followed while a broker writes: rolled and expired files, new topics", "live", follow.follow_broker),
    Scenario("a broker in its default configuration, in turns", "default", defaults.default_broker, ("v5",)),
    *(
        Scenario(f"kinds of stores: {kind.title}", f"kinds {number % 2}", kind.run, ("v5",))
        for number, kind in enumerate(kinds.KINDS)
    ),
    Scenario("a mount with a slave, both killed, and its consumers", "feeding", feeding.slave_and_consumers),
    Scenario("a live copy of a broker, both killed, promoted", "feeding", copying.copied_broker),
    Scenario("a live copy of a pair with a controller, master killed", "feeding", copying.copied_pair, ("v5",)),
    Scenario("followed: a broker that was killed, every key", "default", outliving.killed_broker),
    Scenario("followed: a topic deleted on an idle broker", "default", outliving.deleted_topic),
    Scenario("followed: a copied log without queues and index", "default", outliving.copied_log),
    Scenario("a live copy at 3,000 messages a second, both killed", "load", copied_load.copied_load),
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
class GroupRun:
    """Scenarios of one line, one after the other, in folders below `base`."""

    line: Line
    base: Path
    first_seed: int
    own_warnings: dict[bool, set[str]] = field(default_factory=dict)

    def run(self, scenario: Scenario) -> Result:
        """Run one. A failure of any kind is a difference; its folder is kept for debugging."""
        try:
            return self._attempt(scenario)
        except DriverError as error:
            print(f"again  {self.line.version}  {scenario.title}: {str(error).splitlines()[0]}", flush=True)
        try:
            return self._attempt(scenario)
        except DriverError:
            tally = Tally()
            tally.differences.append(traceback.format_exc())
            return Result(self.line.version, scenario.title, tally, 0.0)

    def _attempt(self, scenario: Scenario) -> Result:
        """One run in a fresh folder; DriverError when RocketMQ failed."""
        folder = Path(tempfile.mkdtemp(prefix=f"{scenario.run.__name__}-", dir=self.base))
        room = Room(self.line, folder, self.first_seed + SCENARIOS.index(scenario), own_warnings=self.own_warnings)
        began = time.monotonic()
        try:
            scenario.run(room)
        except Exception as error:  # an error is a result, and the other scenarios still run
            if isinstance(error, DriverError) and not isinstance(error, LoadRefusedError):
                raise
            room.tally.differences.append(traceback.format_exc())
        result = Result(self.line.version, scenario.title, room.tally, time.monotonic() - began)
        if result.passed:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            room.tally.differences.append(f"its files: {folder}")
        return result


@dataclass(frozen=True, slots=True)
class Group:
    """The work of one process: scenarios of a line that share a group, in their order."""

    line: Line
    name: str
    scenarios: tuple[int, ...]
    first_seed: int

    def run(self) -> list[tuple[int, Result]]:
        """Run them; says each result at once. The numbers are places in SCENARIOS."""
        base = BUILD / "work" / self.line.name / self.name
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        runs = GroupRun(self.line, base, self.first_seed)
        results = []
        for number in self.scenarios:
            result = runs.run(SCENARIOS[number])
            print(sentence(result), flush=True)
            results.append((number, result))
        return results


def groups(only: str | None, chosen: str, first_seed: int) -> list[Group]:
    """Everything to run: of the line called `only`, or of all, what has `chosen` in its title. The longest first."""
    found = []
    for name in ("ours", "live", "kinds 0", "kinds 1", "default", "feeding", "theirs", "load"):
        for line in reversed(LINES):
            numbers = tuple(
                number
                for number, scenario in enumerate(SCENARIOS)
                if scenario.group == name and line.name in scenario.lines and chosen in scenario.title
            )
            if numbers and only in (None, line.name):
                found.append(Group(line, name, numbers, first_seed))
    return found


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
