"""The README's session as a recording: its commands are typed into a shell on a terminal of its own.

    python -m tests.docs.recording

writes docs/session.cast (asciinema's format, version 2): `asciinema play docs/session.cast`.
"""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.test_readme import session

CAST = Path(__file__).resolve().parents[2] / "docs/session.cast"
COLUMNS, ROWS = 96, 30
PROMPT = "\x1b[1;32m$\x1b[0m "
KEY_SECONDS, READING_SECONDS = 0.03, 1.2
DEADLINE_SECONDS = 60

Event = tuple[float, str, str]


def run(command: str, folder: Path) -> str:
    """What a command prints on a terminal. It has to succeed."""
    keyboard, screen = pty.openpty()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "XDG_STATE_HOME": str(folder / "state")}
    shell = ["bash", "-c", f"stty cols {COLUMNS} rows {ROWS}; {command}"]
    with subprocess.Popen(shell, cwd=folder, env=environment, stdin=screen, stdout=screen, stderr=screen) as process:
        os.close(screen)
        printed = b""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            if not select.select([keyboard], [], [], 0.2)[0]:
                if process.poll() is not None:
                    break
                continue
            try:
                printed += os.read(keyboard, 1 << 16)
            except OSError:  # nothing has the terminal open any more
                break
        os.close(keyboard)
        if process.wait(DEADLINE_SECONDS) != 0:
            raise RuntimeError(f"{command}: {printed.decode(errors='replace')}")
    return printed.decode()


def record(folder: Path) -> list[Event]:
    """The events of the session, with times at which a person could follow."""
    events: list[Event] = []
    now = 0.5
    for command, _ in session():
        events.append((now, "o", PROMPT))
        for key in command:
            now += KEY_SECONDS
            events.append((now, "o", key))
        began = time.monotonic()
        printed = run(command, folder).replace(f"{folder}/", "~/")
        now += 0.2
        events.append((now, "o", "\r\n"))
        now += time.monotonic() - began
        events.append((now, "o", printed))
        now += READING_SECONDS
    return events


def main() -> None:
    """Write it."""
    with TemporaryDirectory() as folder:
        events = record(Path(folder))
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "fsstore: the session of its README"}
    lines = [header, *([round(at, 3), kind, text] for at, kind, text in events)]
    CAST.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    main()
