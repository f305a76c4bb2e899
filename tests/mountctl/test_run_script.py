"""The scripts parse in a plain sh, and print their usage. (People and CI run their commands.)"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROJECT / "run", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        ("sh", "run"),
        ("sh", ".ci/setup.sh"),
        ("sh", ".ci/lock"),
        *[("sh", f".ci/{name}.sh") for name in ("build", "deb", "wheel")],
        ("bash", ".ci/run"),
    ],
)
def test_scripts_parse(shell: str, script: str) -> None:
    subprocess.run([shell, "-n", PROJECT / script], check=True)


def test_without_a_verb_it_lists_the_verbs() -> None:
    words = run()
    assert words.returncode == 0
    verbs = (
        *("setup", "demo", "test", "lint", "deb", "wheel", "interop"),
        *("look", "fleet", "bench", "walk", "durability"),
    )
    for verb in verbs:
        assert f"\n  {verb} " in words.stdout


def test_man_finds_the_manual_in_an_environment_that_is_active(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(PROJECT / "docs")
    script = f". {PROJECT}/.ci/setup.sh && link_manual && link_manual"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    page = tmp_path / ".venv/share/man/man1/mountctl.1"  # beside .venv/bin, where man looks
    assert page.read_bytes() == (PROJECT / "docs/mountctl.1").read_bytes()


def test_an_unknown_verb_is_refused_before_anything_is_installed() -> None:
    refused = run("tests")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "usage: ./run VERB" in refused.stderr


def test_every_room_is_part_of_run_test() -> None:
    steps = [line.split() for line in (PROJECT / "run").read_text().splitlines() if "-m pytest -q" in line]
    rooms = {file.parent.name for file in (PROJECT / "tests").glob("*/test_*.py")}
    assert {word for step in steps for word in step} >= {f"tests/{room}" for room in rooms} | {"tests/test_layers.py"}


def locked(name: str) -> dict[str, int]:
    """The distributions in a lock of .ci, as 'name==version', and the number of hashes of each."""
    entries = (PROJECT / ".ci" / name).read_text().replace("\\\n", " ").splitlines()
    words = [entry.split() for entry in entries if entry and not entry.lstrip().startswith("#")]
    return {first: sum(word.startswith("--hash=sha256:") for word in rest) for first, *rest in words}


@pytest.mark.parametrize("name", ["build.txt", "wheel.txt", "look.txt", "requirements.txt", "development.txt"])
def test_everything_that_is_installed_has_its_hashes(name: str) -> None:
    hashes = locked(name)
    assert hashes
    assert all("==" in pinned for pinned in hashes)
    assert min(hashes.values()) >= 1
    assert "://" not in (PROJECT / ".ci" / name).read_text()


def test_who_only_mounts_gets_no_test_tools_and_the_versions_that_are_tested() -> None:
    mounting, development = set(locked("requirements.txt")), set(locked("development.txt"))
    assert mounting < development
    names = {pinned.partition("==")[0] for pinned in mounting}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = {re.split("[<>=]", text)[0] for text in project["dependencies"]}
    assert wanted <= names
    assert not names & {
        "pytest",
        "mypy",
        "hypothesis",
        "pyspark",
        "pyarrow",
        "pandas",
        "py-spy",
        "polars",
        "duckdb",
        "httptools",
    }


def test_the_debian_package_has_all_that_is_installed(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/fsstore").symlink_to(sys.prefix)  # the environment, which takes minutes to make
    subprocess.run([PROJECT / ".ci/deb.sh", "layout", tmp_path], check=True)
    share = tmp_path / "usr/share"
    assert os.readlink(tmp_path / "usr/bin/mountctl") == "/usr/lib/fsstore/bin/mountctl"
    assert os.readlink(tmp_path / "usr/sbin/mount.fsstore") == "../bin/mountctl"
    assert (
        gzip.decompress((share / "man/man1/mountctl.1.gz").read_bytes()) == (PROJECT / "docs/mountctl.1").read_bytes()
    )
    assert "complete " in (share / "bash-completion/completions/mountctl").read_text()
    assert (share / "zsh/vendor-completions/_mountctl").read_text().startswith("#compdef mountctl")
    assert "complete " in (share / "fish/vendor_completions.d/mountctl.fish").read_text()
    assert "Apache License" in (share / "doc/fsstore/copyright").read_text()
    for name, commands in {"mq": 2, "mq-serve": 1}.items():
        unit = (share / f"doc/fsstore/examples/{name}.service").read_text()
        assert (unit.startswith("[Unit]\n"), unit.count("/usr/bin/mountctl"), "`" in unit) == (True, commands, False)
        assert unit.endswith("WantedBy=multi-user.target\n")


def test_purging_the_debian_package_removes_the_logs_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/fsstore").symlink_to(sys.prefix)
    subprocess.run([PROJECT / ".ci/deb.sh", "layout", tmp_path], check=True)
    script = (tmp_path / "DEBIAN/postrm").read_text().replace("/var/", f"{tmp_path}/var/")
    kept, gone = tmp_path / "var/lib/fsstore", [tmp_path / "var/log/fsstore", tmp_path / "var/cache/fsstore"]
    for folder in (kept, *gone):
        (folder / "mq").mkdir(parents=True)
    for step, left in {"remove": True, "upgrade": True, "purge": False}.items():
        subprocess.run(["sh", "-c", script, "postrm", step], check=True)
        assert [folder.exists() for folder in (kept, *gone)] == [True, left, left], step
    assert os.access(tmp_path / "DEBIAN/postrm", os.X_OK)


def test_without_root_the_missing_packages_are_named(tmp_path: Path) -> None:
    for name, answer in {"apt-get": "exit 9", "apt-cache": "exit 9", "id": "echo 1000"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "grep").symlink_to("/usr/bin/grep")
    missing = "missing_packages() { echo gcc libfuse3-dev java; }"
    done = subprocess.run(
        ["/bin/sh", "-c", f". ./.ci/setup.sh; {missing}; install_system_packages"],
        cwd=PROJECT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (
        1,
        "run: this needs root or sudo; somebody who has it runs: "
        "apt-get install --no-install-recommends gcc libfuse3-dev default-jre-headless\n",
    )
    assert done.stderr == "run: could not install: gcc libfuse3-dev java\n"


def test_setup_takes_no_other_profile() -> None:
    refused = run("setup", "everything")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_the_readme_names_each_system_package() -> None:
    script = (PROJECT / ".ci/setup.sh").read_text()
    packages = {name for words in re.findall(r'list="\$list ([^"]+)"', script) for name in words.split()}
    assert len(packages) > 10
    named = set(re.findall(r"[\w.+-]+", (PROJECT / "README.md").read_text())) | {"java"}  # stands for a runtime
    assert packages <= named, packages - named
