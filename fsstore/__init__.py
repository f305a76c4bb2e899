"""The mounted filesystem over a message store: a core without FUSE, and a pyfuse3 adapter over it.

Importing this package loads neither pyfuse3 nor libfuse; `serve_mount` does, when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fsstore.options import MountError, ParquetOptions, ServeOptions

if TYPE_CHECKING:
    from engine import MessageStore
    from fsstore.handover.keeper import Keeper

__all__ = ["MountError", "ParquetOptions", "ServeOptions", "serve_mount"]


def serve_mount(
    store: MessageStore,
    mountpoint: Path | str,
    options: ServeOptions | None = None,
    ready: Callable[[], None] | None = None,
    keeper: Keeper | None = None,
    facts: Callable[[], Mapping[str, object]] | None = None,
) -> None:
    """Mount `store` at `mountpoint` and serve it until it is unmounted or a signal ends it (SIGTERM,
    SIGINT, SIGQUIT, SIGXCPU, SIGPWR); then return.

    Runs in the calling thread, which must be the process's main thread; one mount per process. `ready` is called once,
    when the kernel's first request has been answered. On return the mount has ended, unpublished bytes of open handles
    are dropped, and the store is still open: the caller closes it. With a `keeper`, the mount outlives this process if
    it is killed. `facts` returns further fields of status.json. Raises MountError if the kernel or fusermount3 refuses.
    """
    from fsstore.fuse.mount import run_mount  # here, so that other users of this package need no libfuse

    run_mount(store, Path(mountpoint), options or ServeOptions(), ready, keeper=keeper, facts=facts)
