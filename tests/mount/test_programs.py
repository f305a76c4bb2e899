"""docs/programs.md: ordinary programs on a mount, with the flags and refusals in that page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.harness import mounted, publish, sh, until

WORKS = {
    "rsync --inplace": ("rsync --inplace ~/lines 0/append", "a\nb\n"),
    "split": ("split -l 1 --filter='cat >> 0/append' ~/lines", "a\nb\n"),
    "cp": ("cp ~/lines 0/append", "a\nb\n"),
    "tar x": ("tar cf ~/x.tar -C ~ lines && tar xf ~/x.tar -C 0/drop", "a\nb\n\n"),
    "a logger": (
        'python3 -c "import logging.handlers as h, logging as l; l.getLogger().addHandler('
        "h.WatchedFileHandler('0/append')); l.error('a'); l.error('b')\"",
        "a\nb\n",
    ),
}
REFUSED = {
    "rsync": ("rsync ~/lines 0/append", "mkstemp"),
    "mv onto append": ("mv ~/lines 0/append", "Operation not permitted"),
    "mv of a message": ("printf 'a\\n' >> 0/append; mv 0/0 ~/", "Operation not permitted"),
    "a logger that rotates": (
        "python3 -c \"import logging.handlers as h; h.RotatingFileHandler('0/append', backupCount=1).doRollover()\"",
        "PermissionError",
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "lines").write_text("a\nb\n")
    return tmp_path


def typed(command: str, topic: Path, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["env", f"HOME={home}", "bash", "-c", command], cwd=topic, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("program", WORKS)
def test_what_publishes(topic: Path, home: Path, program: str) -> None:
    command, text = WORKS[program]
    done = typed(command, topic, home)
    assert (done.returncode, done.stderr) == (0, "")
    assert (topic / "0.log").read_text() == text


@pytest.mark.parametrize("program", REFUSED)
def test_what_cannot(topic: Path, home: Path, program: str) -> None:
    command, words = REFUSED[program]
    done = typed(command, topic, home)
    assert words in done.stderr
    assert (home / "lines").read_text() == "a\nb\n"
    assert (topic / "0.log").read_text() == ("a\n" if program == "mv of a message" else "")


def test_who_walks_leaves_out_what_begins_with_an_at_sign(home: Path) -> None:
    with mounted(home) as mount:
        publish(mount.topic("t") / "0/append", b"a needle\n")
        found = sh("grep -rl --exclude-dir='@*' 'a needle' .", mount.root).split()
        assert set(found) == {"./t.log", "./t/0.log", f"./t/0/{0:020d}"}
        assert "./t.log" in sh("find . -name '@*' -prune -o -name '*.log' -print", mount.root).split()
        for changed in (1, 0):
            command = f"rsync -ai --exclude='@*' --exclude=append --exclude=drop t {home}/copy"
            assert bool(sh(command, mount.root)) == changed
        assert (home / "copy/t/0.log").read_bytes() == b"a needle\n"


@pytest.fixture(params=["WRITE", "READ_ONLY", "FOLLOW"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Of a mount with a message of the key K."""
    mode: str = request.param
    with mounted(tmp_path) as mount:
        publish(mount.topic("t") / "0/append@keys=K", b"a needle\n")
        if mode == "WRITE":
            yield mount.root
            return
        if mode == "FOLLOW":
            (tmp_path / "beside").mkdir()
            with mounted(tmp_path / "beside", store=mount.store, config={"mode": mode}) as other:
                until("its keys are known", (other.root / "t/keys/K").is_symlink)  # a moment after it is mounted
                yield other.root
            return
    with mounted(tmp_path, store=mount.store, config={"mode": mode}) as other:
        yield other.root


COPIES = {
    "tar": "tar cf ~/x.tar . && mkdir ~/copy && tar xf ~/x.tar -C ~/copy",
    "cp": "cp -a . ~/copy",
    "rsync": "rsync -a . ~/copy",
}


@pytest.mark.parametrize("program", COPIES)
def test_a_whole_root_is_copied(root: Path, home: Path, program: str) -> None:
    done = typed(COPIES[program], root, home)
    assert (done.returncode, done.stderr) == (0, "")
    copy = home / "copy"
    assert (copy / "t/keys/K").read_bytes() == b"a needle"
    assert (copy / "@parquet/topic=t/queue=0").is_dir()
    assert json.loads((copy / "@store/status.json").read_bytes())["stats"]["messages"] == 1
    metrics = (copy / "@store/metrics").read_bytes()
    assert metrics.endswith(b"\n")
    assert b"\nfsstore_messages 1\n" in metrics
    assert not (copy / "@store/accesslog").exists()


def test_who_reads_a_whole_root_comes_to_its_end(root: Path) -> None:
    found = sh("grep -rl 'a needle' .", root).split()
    assert {"./t.log", "./t/0.log", f"./t/0/{0:020d}"} <= {*found}
    assert sh("find @store -newer @store/status.json -name config.json", root) == ""
