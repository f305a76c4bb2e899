"""The small examples run as they stand. (Spark's are tested with Spark; the whole demo is a verb of ./run.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.mountctl.conftest import DEADLINE_SECONDS, Site

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def output_of(*command: str | Path, **environment_more: str) -> str:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **environment_more}
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_engine_example_finds_what_it_published(tmp_path: Path) -> None:
    said = output_of(sys.executable, EXAMPLES / "publish_and_find.py", tmp_path / "store").splitlines()
    assert [line.split()[:4] for line in said[:3]] == [
        ["0", "7", "apples", "paid"],
        ["1", "8", "pears", "paid"],
        ["2", "9", "plums", "paid"],
    ]
    assert said[3] == "ORDER-1: 8 pears"


def test_the_quick_demo_publishes_and_reads_and_leaves_nothing_mounted(tmp_path: Path) -> None:
    said = output_of(sys.executable, EXAMPLES / "demo.py", "--quick", TMPDIR=str(tmp_path))
    assert "no findings" in said
    assert str(tmp_path) in said
    assert f"{tmp_path}/" not in Path("/proc/mounts").read_text()
    assert not list(tmp_path.iterdir())


def test_the_walk_names_what_an_append_and_a_read_go_through() -> None:
    said = output_of(sys.executable, "-m", "tests.bench.walk")
    for title, passed in [("append of one line", "Queue.put"), ("cold read", "RequestHandlers.open")]:
        walk = said[said.index(title) :].partition("\n\n")[0]
        assert passed in walk


def test_messages_are_counted_without_changing_the_store(store: Path) -> None:
    assert output_of(sys.executable, EXAMPLES / "count_messages.py", store).split() == ["10", "orders"]


def test_a_shell_publishes_and_reads(site: Site) -> None:
    site.mounted()
    said = output_of("sh", EXAMPLES / "shell.sh", site.mountpoint).splitlines()
    assert said[0] == "with a key and a tag"
    assert len(said) == 6
    counts = [int(line.split(": ")[1].split()[0]) for line in said[2:]]
    assert sum(counts) == 5
