"""The systemd units of the documents, as systemd reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
UNITS = {
    path.stem: block
    for path in sorted(DOCS.glob("*.md"))
    for block in re.findall(r"^```ini\n(\[Unit\]\n.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
}
PROGRAM = "/usr/local/bin/mountctl"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def said_of(unit: str, folder: Path) -> str:
    """What `systemd-analyze verify` has against a unit whose program is there."""
    assert PROGRAM in unit
    path = folder / "verified.service"
    path.write_text(unit.replace(PROGRAM, "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@needs_systemd
@pytest.mark.parametrize("document", ["fleet", "operations", "replication"])
def test_systemd_takes_each_unit(document: str, tmp_path: Path) -> None:
    assert UNITS.keys() == {"fleet", "operations", "replication"}
    assert said_of(UNITS[document], tmp_path) == ""
    assert "LimitFiles" in said_of(UNITS[document].replace("LimitNOFILE", "LimitFiles"), tmp_path)
