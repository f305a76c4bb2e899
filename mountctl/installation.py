"""This program's installation: the command that adds a library, and the check for a conflicting distribution.

The distribution is `fsstore-mount`. `fsstore` on the public index is another project with a package of the same name
as ours; installed into the same environment, it replaces our files.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from fsstore.options import DISTRIBUTION
from mountctl.errors import CommandError

STRANGER = "fsstore"
_OF_EXTRA = re.compile(r"""([\w.-]+)[^;]*; *extra *== *['"](\w+)['"]""")


def missing(library: str, extra: str) -> CommandError:
    """The error for a missing `library`, one of the optional dependencies `extra`; its remedy is the installing
    command."""
    found = (_OF_EXTRA.match(requirement) for requirement in requires(DISTRIBUTION) or ())
    names = " ".join(match[1] for match in found if match and match[2] == extra)
    return CommandError(f"{library} is not installed", f"{_installer()} {names}")


def _installer() -> str:
    """The command that installs into this program's environment without an index look-up of our names."""
    if Path(sys.prefix, "pipx_metadata.json").exists():
        return f"pipx inject {DISTRIBUTION}"
    if find_spec("pip") is None:
        return f"pip --python {sys.executable} install"
    return f"{sys.executable} -m pip install"


def require_unmixed() -> None:
    """CommandError: the other project named fsstore is installed in this environment."""
    try:
        other = version(STRANGER)
    except PackageNotFoundError:
        return
    reason = f"the distribution {STRANGER} {other} is installed beside {DISTRIBUTION}, and may have replaced its files"
    remedy = f"{sys.executable} -m pip uninstall {STRANGER}, then install {DISTRIBUTION} again"
    raise CommandError(reason, remedy, os.EX_CONFIG)
