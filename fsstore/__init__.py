"""The mounted filesystem over a message store: a core that knows no FUSE, and a pyfuse3 adapter over it.

Importing this package loads neither pyfuse3 nor libfuse; `serve` does, when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fsstore.options import MountError, ParquetOptions, ServeOptions

if TYPE_CHECKING:
    from engine import MessageStore
    from fsstore.handover.keeper import Keeper

__all__ = ["MountError", "ParquetOptions", "ServeOptions", "serve"]


def serve(
    store: MessageStore,
    mountpoint: Path | str,
    options: ServeOptions | None = None,
    ready: Callable[[], None] | None = None,
    keeper: Keeper | None = None,
    facts: Callable[[], Mapping[str, object]] | None = None,
) -> None:
    """Mount `store` at `mountpoint` and serve it until it is unmounted or a signal ends it (SIGTERM,
    SIGINT, SIGQUIT, SIGXCPU, SIGPWR); then return.

    Runs in the calling thread, which has to be the process's main thread; one mount per process. `ready` is called once
    when the kernel's first request has been answered. On return the mount is gone, and unfinished bytes of open
    handles with it; the store is left open, for the caller to close. With a `keeper`, the mount outlives this process
    when that is killed. What `facts` returns, status.json says as well. Raises MountError when the kernel or
    fusermount3 refuse.
    """
    from fsstore.fuse.mount import run_mount  # here, so that users of the rest need no libfuse

    run_mount(store, Path(mountpoint), options or ServeOptions(), ready, keeper=keeper, facts=facts)
