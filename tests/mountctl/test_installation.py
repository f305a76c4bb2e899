"""The program's knowledge of its own installation."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mountctl import installation
from mountctl.errors import CommandError


def hint(extra: str) -> str:
    return str(installation.missing("It", extra))


def test_a_missing_library_is_installed_into_this_programs_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hint("sql") == f"It is not installed: {sys.executable} -m pip install duckdb"
    assert re.fullmatch(rf"It is not installed: {sys.executable} -m pip install pandas pyarrow pyspark", hint("spark"))
    monkeypatch.setattr("mountctl.installation.find_spec", lambda name: None)  # as in the Debian package
    assert hint("arrow") == f"It is not installed: pip --python {sys.executable} install pyarrow"
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    (tmp_path / "pipx_metadata.json").touch()
    assert hint("arrow") == "It is not installed: pipx inject fsstore-mount pyarrow"


def test_another_projects_distribution_in_the_same_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.require_unmixed()
    other = tmp_path / "fsstore-0.1.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: fsstore\nVersion: 0.1.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        CommandError, match=r"fsstore 0\.1\.1 is installed beside fsstore-mount, .* pip uninstall fsstore"
    ):
        installation.require_unmixed()
