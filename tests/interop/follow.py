"""Following a live broker: a real producer at its rate, a real broker that rolls and expires files, a mount beside it.

`python -m tests.interop.follow --minutes 5` is the long form: it prints a table and keeps the figures as JSON.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine import FileSizes
from tests.interop.brokers import Broker, client_message, live_broker
from tests.interop.driver import Driver
from tests.interop.mounts import mounted, status, written_by
from tests.interop.room import Room, java_config
from tests.interop.table import FOLLOW, write_docs
from tests.interop.tailing import Tail, TopicReader
from tests.interop.toolchain import BUILD, LINES, PROJECT, NotAvailableError, build_drivers

TOPIC = "load"
QUEUES = 8
BODY_BYTES = 100
RATE = 5_000
SHORT_SECONDS = 20
WARM_UP_SECONDS = 4
ROUND_SECONDS = 5.0
KEPT_MS = 10_000
VISIBLE_WITHIN_MS = 1_000
LIMIT_SECONDS = 120
POLL_SECONDS = 0.01
SIZES = FileSizes(commit_log_bytes=4 << 20, consume_queue_entries=4_000, index_slots=50_000, index_entries=200_000)
"""Small enough that every kind of file rolls, and expires, every few seconds."""


@dataclass(slots=True)
class Figures:
    """One run: the producer's rate, the durations of the store's puts, and the delay until messages could be read."""

    version: str
    load: dict[str, Any] = field(default_factory=dict)
    puts: dict[str, Any] = field(default_factory=dict)
    expired_files: int = 0
    log_delays: dict[str, float] = field(default_factory=dict)
    file_delays: dict[str, float] = field(default_factory=dict)
    new_topic_delays_ms: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Messages that the producer sent."""
        return sum(self.load["by_queue"])


def run_alone(driver: Driver, store: Path, rate: int, seconds: int) -> Figures:
    """The broker without a mount, to compare with."""
    figures = Figures(driver.line.version)
    with live_broker(driver, store, java_config(SIZES)) as broker:
        start_load(broker, rate, seconds)
        for _ in rounds(seconds):
            figures.expired_files += expire(broker)
        take_load(broker, figures)
    return figures


def run_followed(driver: Driver, folder: Path, rate: int, seconds: int) -> Figures:
    """The same with a mount beside it that reads every message as soon as it can."""
    store = folder / "followed"
    figures = Figures(driver.line.version)
    with live_broker(driver, store, java_config(SIZES)) as broker:
        broker.make_topic("first", 1)
        broker.send([client_message("first", b"now the store has files")])
        with mounted(store, folder / "mount", "--follow") as mount:
            start_load(broker, rate, seconds)
            await_path(mount / TOPIC, *(f"{queue}.log" for queue in range(QUEUES)))
            reader = TopicReader(mount, TOPIC, QUEUES)
            tail = Tail(mount / TOPIC / "0.log", folder / "tail.txt")
            reader.start()
            for number in rounds(seconds):
                figures.expired_files += expire(broker)
                figures.new_topic_delays_ms.append(new_topic_delay_ms(broker, mount, f"new-{number}"))
            take_load(broker, figures)
            figures.problems += reader.finish(figures.load["by_queue"])
            figures.problems += filter(None, [tail.finish(reader.bytes_read(0))])
            figures.problems += look_at_rest(mount, broker.bounds(TOPIC, QUEUES))
            figures.problems += written_by(status(mount)["pid"], store)
    figures.log_delays, figures.file_delays = reader.log_delays.figures(), reader.file_delays.figures()
    if (store / "fsstore").exists():
        figures.problems.append("the follower wrote into the store's folder")
    return figures


def start_load(broker: Broker, rate: int, seconds: int) -> None:
    """A producer in the background; before it one of its own kind, until RocketMQ's code is warm."""
    for topic, duration in (("warm-up", WARM_UP_SECONDS), (TOPIC, seconds)):
        broker.make_topic(topic, QUEUES)
        broker.driver.call(
            "produce",
            names=broker.names,
            topic=topic,
            queues=QUEUES,
            body_bytes=BODY_BYTES,
            rate=rate,
            seconds=duration,
        )
        if topic != TOPIC:
            broker.driver.call("produced")
            broker.figures()  # what it took until here doesn't count


def take_load(broker: Broker, figures: Figures) -> None:
    """Wait for the producer's end; returns its rate and the durations of the store's puts."""
    figures.load = broker.driver.call("produced")
    figures.puts = broker.figures()["puts"]
    if figures.load["failures"]:
        figures.problems.append(f"{figures.load['failures']} sends failed")


def rounds(seconds: int) -> range:
    """Rounds that fit into a run, each to be begun after a pause; the pauses are taken by `expire`."""
    return range(int(seconds / ROUND_SECONDS))


def expire(broker: Broker) -> int:
    """After a pause, have the broker delete log files without recent messages; returns how many."""
    time.sleep(ROUND_SECONDS)
    files: int = broker.driver.call("broker_expire", older_than_ms=KEPT_MS)["files"]
    return files


def new_topic_delay_ms(broker: Broker, mount: Path, topic: str) -> int:
    """How long after it was stored a message in a topic that just came to be can be read. It is looked for from before
    it is sent: when the producer hears of its success says nothing."""
    broker.make_topic(topic, 1)
    message = mount / topic / "0" / "0"
    with ThreadPoolExecutor(1) as looking:
        seen = looking.submit(first_seen_ms, message)
        broker.send([client_message(topic, b"hello")])
        return seen.result() - message.stat().st_mtime_ns // 1_000_000


def first_seen_ms(path: Path) -> int:
    """Epoch milliseconds when a path comes to be there."""
    await_path(path.parent, path.name)
    return time.time_ns() // 1_000_000


def await_path(folder: Path, *names: str) -> None:
    """Return once all those names are there."""
    limit = time.monotonic() + LIMIT_SECONDS
    while not all((folder / name).exists() for name in names):
        if time.monotonic() > limit:
            raise TimeoutError(f"{folder} never showed {names}")
        time.sleep(POLL_SECONDS)


def look_at_rest(mount: Path, bounds: list[list[int]]) -> list[str]:
    """Without writers: each queue lists exactly the messages that the broker still has, and they are readable."""
    problems = []
    for queue, (first, end) in enumerate(bounds):
        folder = mount / TOPIC / str(queue)
        listed = sorted(path.name for path in folder.iterdir() if path.name.isdigit())
        if [int(name) for name in listed] != list(range(first, end)):
            shown = f"{listed[0]} to {listed[-1]}, {len(listed)} names" if listed else "nothing"
            problems.append(f"queue {queue} lists {shown}, and the broker has {first} to {end - 1}")
        for name in listed[:1] + listed[len(listed) // 2 :][:1] + listed[-1:]:
            body = (folder / name).read_bytes()
            if body.split(b" ")[:2] != [b"%d" % queue, b"%d" % int(name)]:
                problems.append(f"queue {queue}, message {name} reads {body[:80]!r}")
    return problems


def follow_broker(room: Room) -> None:
    """A scenario: a short run, of which everything but the speed is judged."""
    with room.driver(threads=True) as driver:
        figures = run_followed(driver, room.folder, RATE, SHORT_SECONDS)
    room.tally.messages += figures.messages
    room.tally.differences += figures.problems
    print(f"       {figures.version} followed: {speed(figures)}", flush=True)


def speed(figures: Figures) -> str:
    """A run's figures in a line."""
    rate = figures.messages / figures.load["seconds"]
    delays = figures.log_delays
    read = f", read after {delays['p99_ms']} ms (p99), {delays['max_ms']} ms (most)" if delays else ""
    return (
        f"{rate:,.0f} messages/s, put {figures.puts['p99_us']:.0f} us (p99), "
        f"send {figures.load['sends']['p99_us']:.0f} us (p99){read}, "
        f"{figures.expired_files} log files expired"
    )


def too_slow(figures: Figures) -> list[str]:
    """What the long form also judges: every message within a second. (The newest file's age is no delay: it may have
    been the newest for a while when it was looked at.)"""
    slow = {"a log": figures.log_delays["max_ms"]}
    slow["a new topic"] = max(figures.new_topic_delays_ms, default=0)
    return [f"{what} showed a message after {delay} ms" for what, delay in slow.items() if delay > VISIBLE_WITHIN_MS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="how long to follow (and a fifth of it without a mount)"
    )
    parser.add_argument("--rate", type=int, default=RATE, help="messages a second")
    parser.add_argument("--json", type=Path, default=BUILD / "follow.json", help="where the figures go")
    parser.add_argument("--line", choices=[line.name for line in LINES], help="only this line of RocketMQ")
    parser.add_argument("--write-docs", action="store_true", help="keep the table in docs/rocketmq.md")
    options = parser.parse_args()
    try:
        build_drivers()
    except NotAvailableError as error:
        print(error)
        return 75
    seconds = int(options.minutes * 60)
    runs = [compare_speed(line.name, options.rate, seconds) for line in LINES if options.line in (None, line.name)]
    options.json.write_text(json.dumps(runs, indent=2))
    text = table(runs)
    print(f"\n{text}\n\nfigures: {options.json}")
    if options.write_docs:
        write_docs(PROJECT / "docs" / "rocketmq.md", FOLLOW, text)
    problems = [problem for run in runs for problem in run["with_mount"]["problems"]]
    print("\n".join(problems))
    return 1 if problems else 0


def compare_speed(name: str, rate: int, seconds: int) -> dict[str, Any]:
    """Both runs of one line, as JSON."""
    line = next(line for line in LINES if line.name == name)
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="follow-", dir=BUILD))
    with Driver(line, folder / "home", threads=True) as driver:
        alone = run_alone(driver, folder / "alone", rate, max(SHORT_SECONDS, seconds // 5))
        print(f"{line.version} alone:    {speed(alone)}", flush=True)
        followed = run_followed(driver, folder, rate, seconds)
        print(f"{line.version} followed: {speed(followed)}", flush=True)
    followed.problems += too_slow(followed)
    shutil.rmtree(folder, ignore_errors=True)
    return {"version": line.version, "rate": rate, "without_mount": asdict(alone), "with_mount": asdict(followed)}


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown."""
    rows = [
        "| RocketMQ | messages | rate | put p99, no mount | put p99, mount | readable after (p50, p99, most) | wrong |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        alone, followed = run["without_mount"], run["with_mount"]
        sent, delays = sum(followed["load"]["by_queue"]), followed["log_delays"]
        rows.append(
            f"| {run['version']} | {sent:,} | {sent / followed['load']['seconds']:,.0f}/s "
            f"| {alone['puts']['p99_us']:.0f} us | {followed['puts']['p99_us']:.0f} us "
            f"| {delays['p50_ms']}, {delays['p99_ms']}, {delays['max_ms']} ms | {len(followed['problems'])} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
