"""Hosts for tests: a real ssh, and for each connection a real sshd of the test's own keys, which needs no port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mountctl.conftest import Run, mountctl

SSHD = "/usr/sbin/sshd"


@dataclass(frozen=True)
class Network:
    """Hosts that `ssh NAME` reaches. A host whose name is that of a script in `programs` runs it as its mountctl; one
    with a file in `down` is not reached."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "programs"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        """Of a user whose ssh has its own configuration."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "HOME": str(self.home)}

    def run(self, *words: str | Path) -> Run:
        """Type a command line as that user."""
        with pytest.MonkeyPatch.context() as patched:
            for name in ("PATH", "HOME"):
                patched.setenv(name, self.environment[name])
            return mountctl(*words)

    def succeed(self, *words: str | Path) -> str:
        """As `run`, which has to succeed in silence; its output."""
        done = self.run(*words)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def commands(self) -> list[str]:
        """The command lines that hosts were told to run."""
        return (self.folder / "commands").read_text().splitlines()

    def install(self, host: str, program: str) -> None:
        """Have a shell's program answer on the host in mountctl's place."""
        _script(self.folder / "programs" / host, program)

    def processes(self) -> list[int]:
        """Those that answer on the hosts."""
        mark = f"MQ_NETWORK={self.folder}".encode()
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in environment.read_bytes():
                    found.append(int(environment.parent.name))
        return found

    def take_down(self, host: str) -> None:
        """End the newest connection to the host, and let no other one come up."""
        (self.folder / "down" / host).touch()
        os.killpg(int((self.folder / "up" / host).read_text()), signal.SIGKILL)

    def bring_up(self, host: str) -> None:
        (self.folder / "down" / host).unlink()


def network(folder: Path) -> Network:
    """Make keys, and the configurations of ssh and sshd."""
    made = Network(folder)
    for name in ("bin", "up", "down", "programs", "home/.config/fsstore", "served"):
        (folder / name).mkdir(parents=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it; a service manager makes it
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "known").write_text(f"test {(folder / 'host.pub').read_text()}")
    _script(folder / "served/mountctl", f'exec {sys.executable} -m mountctl "$@"')
    _script(
        folder / "session",
        f"""echo "$SSH_ORIGINAL_COMMAND" >> {folder}/commands
        program={folder}/programs/$MQ_HOST; [ -x "$program" ] && exec "$program"
        cd {Path.cwd()}; eval "$SSH_ORIGINAL_COMMAND"
        """,
    )
    (folder / "sshd_config").write_text(
        f"""HostKey {folder}/host
        AuthorizedKeysFile {folder}/user.pub
        ForceCommand {folder}/session
        StrictModes no
        UsePAM no
        PidFile none
        PermitRootLogin yes
        PasswordAuthentication no
        KbdInteractiveAuthentication no
        """
    )
    _script(
        folder / "connect",
        f"""[ -e {folder}/down/"$1" ] && exit 1
        echo $$ > {folder}/up/"$1"
        exec {SSHD} -i -f {folder}/sshd_config -E {folder}/sshd.log \\
            -o "SetEnv=MQ_HOST=$1 MQ_NETWORK={folder} PATH={folder}/served:/bin"
        """,
    )
    (folder / "ssh_config").write_text(
        f"""IdentityFile {folder}/user
        IdentitiesOnly yes
        HostKeyAlias test
        UserKnownHostsFile {folder}/known
        ProxyCommand setsid {folder}/connect %n
        """
    )
    _script(folder / "bin/ssh", f'exec /usr/bin/ssh -F {folder}/ssh_config "$@"')
    return made


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
