"""Builds the Java driver, once for each line of RocketMQ, with Maven; knows where the built ones lie."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).resolve().parent / "driver"
BUILD = PROJECT / "build" / "interop"
BUILD_LIMIT_SECONDS = 1200

# What Maven says when a repository, not this project, is the reason.
OUTSIDE_REASONS = ("Could not resolve", "Could not transfer", "could not be resolved", "Unknown host", "Connection")


class NotAvailableError(Exception):
    """Something outside this project is missing, so RocketMQ can't be had here; the message is one line."""


class BuildError(Exception):
    """The driver itself does not build; the message is Maven's."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of RocketMQ: `name` is its Maven profile, `version` that of its store."""

    name: str
    version: str

    @property
    def class_path(self) -> str:
        """The driver and RocketMQ's libraries, for `java -cp`."""
        return f"{BUILD / self.name / 'driver.jar'}:{BUILD / self.name / 'lib'}/*"

    @property
    def grpc_class_path(self) -> str:
        """The same with the client that speaks gRPC; such a process can't be its proxy as well."""
        return f"{BUILD / self.name / 'grpc'}/*:{self.class_path}"


LINES = (Line("v4", "4.9.8"), Line("v5", "5.5.1"))


def build_drivers(lines: Sequence[Line] = LINES) -> None:
    """Build what of `lines` is not built yet. NotAvailableError: no Maven, JDK or Maven Central; BuildError."""
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            raise NotAvailableError(f"interop needs {tool}, and it is not installed here")
    wanted = fingerprint()
    for line in lines:
        stamp = BUILD / line.name / "stamp"
        if stamp.exists() and stamp.read_text() == wanted:
            continue
        run_maven(line)
        stamp.write_text(wanted)


def fingerprint() -> str:
    """Changes when the driver's sources or its pom do."""
    digest = hashlib.sha256()
    for path in sorted(DRIVER.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(DRIVER)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run_maven(line: Line) -> None:
    print(f"interop: building the driver for RocketMQ {line.version} (Maven)", flush=True)
    shutil.rmtree(BUILD / line.name, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-U", "-P", line.name, f"-Dinterop.build={BUILD}", "package"]
    try:
        done = subprocess.run(
            command,
            cwd=DRIVER,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_LIMIT_SECONDS,
            env={**os.environ, "MAVEN_OPTS": "-Xmx512m"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(
            f"Maven did not finish within {BUILD_LIMIT_SECONDS} s: is Maven Central slow?"
        ) from None
    if done.returncode == 0:
        return
    reasons = [text for text in done.stdout.splitlines() if any(word in text for word in OUTSIDE_REASONS)]
    if reasons and "COMPILATION ERROR" not in done.stdout:
        raise NotAvailableError(
            f"Maven Central does not answer with RocketMQ {line.version}: {reasons[0].strip()[:300]}"
        )
    raise BuildError(done.stdout)
