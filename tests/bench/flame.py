"""Flame graphs of our side of a row: `./run bench flame ROW ...` draws docs/flames/row-ROW.svg.

py-spy samples the row as `./run bench ROW` runs it, with the daemons that it mounts. What is drawn is the work itself:
the daemon's request loop where the row uses a mount, else what the row's measured loops call in `engine`. Width is
time.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from tests.interop.toolchain import PROJECT

PICTURES = PROJECT / "docs" / "flames"
SAMPLES_A_SECOND = 500

OURS = ("(engine/", "(fsstore/")
ROWS = "(tests/bench/"
MEASURED = "(tests/bench/measure.py"
REQUESTS = "(fsstore/fuse/session.py"
IMPORTING = "importlib"

WIDTH, ROW_HEIGHT, TOP = 1_000, 17, 24
LEAST_SHARE = 0.004
"""Narrower frames are left out as unreadable."""
FONT = 'font-family="monospace" font-size="10"'
LETTER_WIDTH = 6.2
COLOURS = {"(engine/": "#a9c4eb", "(fsstore/": "#f3c98b", ROWS: "#d9d9d9"}
OTHER_COLOUR = "#c9e2c4"


@dataclass
class Frame:
    """A function at its place in the stack: its number of samples, and its callees."""

    samples: int = 0
    calls: dict[str, "Frame"] = field(default_factory=dict)

    def add(self, stack: Sequence[str], samples: int) -> None:
        """Count a stack, outermost function first."""
        self.samples += samples
        if stack:
            self.calls.setdefault(stack[0], Frame()).add(stack[1:], samples)


def main(rows: Sequence[str]) -> int:
    """Draw the flame graph of each row."""
    PICTURES.mkdir(exist_ok=True)
    for row in rows:
        picture = PICTURES / f"row-{row}.svg"
        picture.write_text(drawn(work_of(sampled(row)), f"row {row}: our side, by time"))
        print(picture, flush=True)
    return 0


def sampled(row: str) -> Counter[str]:
    """How often each stack was seen while the row ran: functions from the outermost on, separated by semicolons."""
    sampler = str(Path(sys.executable).with_name("py-spy"))
    how = ["--subprocesses", "--function", "--format", "raw", "--rate", str(SAMPLES_A_SECOND)]
    with tempfile.NamedTemporaryFile("r") as stacks:
        command = [sampler, "record", *how, "-o", stacks.name, "--", sys.executable, "-m", "tests.bench", row]
        subprocess.run(command, check=True, cwd=PROJECT)
        counted: Counter[str] = Counter()
        for line in stacks:
            stack, _, samples = line.rpartition(" ")
            counted[stack] += int(samples)
    return counted


def work_of(stacks: Counter[str]) -> Frame:
    """The part of the stacks that is the row's work."""
    running = {stack: samples for stack, samples in stacks.items() if IMPORTING not in stack}
    through_mount = any(REQUESTS in stack for stack in running)
    root = Frame()
    for stack, samples in running.items():
        frames = stack.split(";")
        begin = first(frames, (REQUESTS,)) if through_mount else first(frames, OURS) - 1
        if begin >= 0 and (through_mount or MEASURED in stack):
            root.add(frames[begin:], samples)
    return root


def first(frames: Sequence[str], files: Sequence[str]) -> int:
    """Index of the first function out of any of `files`; -1 when there is none."""
    return next((index for index, frame in enumerate(frames) if any(file in frame for file in files)), -1)


def drawn(root: Frame, title: str) -> str:
    """An SVG document: callers above their callees."""
    rectangles = list(rectangles_of(root, 0.0, WIDTH / max(root.samples, 1), TOP, root.samples * LEAST_SHARE))
    height = max((y for y, _ in rectangles), default=TOP) + ROW_HEIGHT + 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n<text x="4" y="15" font-size="12">{escape(title)}</text>\n'
        + "\n".join(markup for _, markup in rectangles)
        + "\n</svg>\n"
    )


def rectangles_of(frame: Frame, x: float, scale: float, y: int, least: float) -> Iterator[tuple[int, str]]:
    """The callees of a function, the widest first, and below each its own: height and markup of each."""
    for name, called in sorted(frame.calls.items(), key=lambda call: -call[1].samples):
        if called.samples < least:
            return
        width = called.samples * scale
        yield y, rectangle(name, x, y, width, called.samples / (WIDTH / scale))
        yield from rectangles_of(called, x, scale, y + ROW_HEIGHT, least)
        x += width


def rectangle(name: str, x: float, y: int, width: float, share: float) -> str:
    """A function: its name as far as it fits; all of it, and its share of the samples, when pointed at."""
    colour = next((colour for place, colour in COLOURS.items() if place in name), OTHER_COLOUR)
    label = name.partition(" (")[0][: int((width - 4) / LETTER_WIDTH)]
    return (
        f'<g><title>{escape(name)} {share:.1%}</title><rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" '
        f'height="{ROW_HEIGHT - 1}" fill="{colour}"/><text x="{x + 2:.1f}" y="{y + 12}">{escape(label)}</text></g>'
    )
