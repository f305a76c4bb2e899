"""Refusal: why a store takes no messages now."""

from __future__ import annotations

from engine.errors import FlushFailedError, ReadOnlyStoreError, StoreClosedError, StoreError


class Refusal:
    """The reason not to write, if there is one. Thread safety: any thread; `error` is one look."""

    def __init__(self, error: StoreError | None) -> None:
        """`error` refuses from the start: a store that is only read."""
        self.error = error
        """What a writer is answered; None when it may write."""
        self.flush_failure: FlushFailedError | None = None
        """The failed flush that ended durability, None while all is well."""
        self._stopped = error
        self._full_disk: StoreError | None = None

    @property
    def reason(self) -> str | None:
        """`error` in a sentence."""
        error = self.error
        return error.reason if isinstance(error, ReadOnlyStoreError) else str(error) if error is not None else None

    def require_none(self) -> None:
        """Raise `error`, if there is one."""
        if self.error is not None:
            raise self.error.with_traceback(None)

    def stop(self, reason: str) -> None:
        """Refuse from now on; the first reason stays."""
        self._set(self._stopped or ReadOnlyStoreError(reason))

    def close(self) -> None:
        """The store is closed, whatever else was wrong."""
        self._set(StoreClosedError())

    def note_flush_failure(self, error: FlushFailedError) -> None:
        """What was written may not be on disk: nothing more is taken."""
        self.flush_failure = self.flush_failure or error
        self.stop(str(error))

    def note_full_disk(self, reason: str | None) -> None:
        """The disk is too full, or (None) is not any more."""
        self._full_disk = ReadOnlyStoreError(reason) if reason is not None else None
        self._set(self._stopped)

    def _set(self, stopped: StoreError | None) -> None:
        self._stopped = stopped
        self.error = stopped or self._full_disk
