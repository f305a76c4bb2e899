"""Config files as RocketMQ writes and reads them (docs/format.md, 11).

    {
        "offsetTable":{
            "TopicTest@group":{0:250,1:251
            }
        }
    }

This is JSON with unquoted integer keys. Each file's previous version is kept as `.bak`, and used when the file is
missing, empty or cut. We write plain JSON, which RocketMQ reads. The file that is replaced becomes the backup.
"""

import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import ConfigFileError, ObstructedError
from engine.files.disk import Buffer, Disk, extend_file, is_whole_number, make_directory, replace_file
from engine.files.paths import is_refused_read, open_file, read_file
from engine.record.header import MAX_OFFSET

FileVersion = tuple[int, int, int] | None
"""A file's inode number, size and modification time (ns); None when it is missing."""
Version = tuple[FileVersion, FileVersion]
"""Versions of a file and its backup."""

BACKUP_SUFFIX = ".bak"
MOST_BYTES = 64 << 20
"""Limit for reading and writing a file: about 300,000 topics."""

# A string (left unchanged), or an integer in the position of a key.
# An unterminated string extends to the end of the text, so that it is searched only once.
_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|([{,]\s*)(-?\d+)(?=\s*:)', re.DOTALL)


def parse_config(text: str) -> dict[str, Any]:
    """The object in `text`; integer keys become strings. ValueError: it is not an object."""
    try:
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = json.loads(_with_quoted_keys(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(parsed, dict):
        raise ValueError("not an object")
    return parsed


def _with_quoted_keys(text: str) -> str:
    return _STRING_OR_BARE_KEY.sub(lambda found: f'{found[1]}"{found[2]}"' if found[2] else found[0], text)


def read_config(path: Path) -> dict[str, Any]:
    """The object in the file at `path`, or in its backup; empty when both are missing. ConfigFileError.

    The older backup is not used for a file that the disk can't read, because a later read may work.
    """
    problem: ConfigFileError | None = None
    for candidate in (path, backup_of(path)):
        try:
            text = read_file(candidate, MOST_BYTES).decode()
            if text.strip(" \t\r\n\0"):
                return parse_config(text)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except IsADirectoryError:
            problem = problem or ConfigFileError(candidate, "a folder stands there")
        except OSError as error:
            if not is_refused_read(error):
                raise
            problem = problem or ConfigFileError(candidate, f"it can't be read: {error.strerror}")
            break
        except ObstructedError as error:
            problem = problem or ConfigFileError(candidate, f"it is {error.found}")
        except ValueError as error:  # not UTF-8, not JSON, or too long
            problem = problem or ConfigFileError(candidate, str(error))
    if problem:
        raise problem
    return {}


def write_config(path: Path, content: Mapping[str, Any], disk: Disk) -> None:
    """`replace_config` with an object."""
    replace_config(path, [json.dumps(content, indent="\t").encode()], disk)


def replace_config(path: Path, text: Sequence[Buffer], disk: Disk, written: Version | None = None) -> Version:
    """Durably replace the file at `path` by one with this text, in pieces; the previous one becomes its backup, unless
    it can't be parsed. Returns the new version. A file that has version `written`, of an earlier call, is not read
    again. OSError.

    Between the two renames only the backup is there, which is read then.
    """
    _require_size(path, sum(map(len, text)))
    for directory in make_directory(path.parent):
        disk.sync_directory(directory)
    is_kept = (written is not None and version_of(path) == written) or _is_kept(path, disk)
    replace_file(path, text, disk, backup_of(path) if is_kept else None)
    return version_of(path)


def extend_config(path: Path, position: int, text: bytes, disk: Disk) -> Version:
    """As `replace_config`, by the backup with `text` from byte `position` on: see `extend_file`. OSError."""
    _require_size(path, position + len(text))
    extend_file(path, backup_of(path), position, text, disk)
    return version_of(path)


def _require_size(path: Path, size_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it would have more than {MOST_BYTES:,} bytes, and not be read again", str(path))


def _is_kept(path: Path, disk: Disk) -> bool:
    """Whether the file becomes the backup. It is synced first: a broker does not do so."""
    if intact(path) is None:
        return False
    descriptor = open_file(path)
    try:
        disk.sync(descriptor, path)
    finally:
        os.close(descriptor)
    return True


def next_version(version: Any, now_ms: int) -> dict[str, Any]:
    """The `dataVersion` after `version`; brokers use it to detect a changed file."""
    known = version if isinstance(version, dict) else {}
    counter: Any = known.get("counter")
    is_known = is_whole_number(counter) and 0 <= counter < MAX_OFFSET
    return {**known, "counter": counter + 1 if is_known else 1, "timestamp": now_ms}


def backup_of(path: Path) -> Path:
    """Path of the previous version of the file at `path`."""
    return path.with_name(path.name + BACKUP_SUFFIX)


def intact(path: Path) -> bytes | None:
    """The bytes of a config file; None: it is missing, or can't be read or parsed. OSError."""
    try:
        content = read_file(path, MOST_BYTES)
        parse_config(content.decode())
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        if not is_refused_read(error):
            raise
        return None  # the caller has the new content already
    return content


def version_of(path: Path) -> Version:
    """A value that changes when the file or its backup changes."""

    def version(file: Path) -> FileVersion:
        try:
            found = file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    return version(path), version(backup_of(path))
