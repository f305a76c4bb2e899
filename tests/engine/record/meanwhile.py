"""Whether other threads run while a call is at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def longest_wait(work: Callable[[], object]) -> float:
    """The longest that this thread could not go on while another was in `work`, as a part of the time that took."""
    took: list[float] = []

    def timed() -> None:
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)

    thread = threading.Thread(target=timed)
    waited, last = 0.0, time.perf_counter()
    thread.start()  # returns late where the work keeps the interpreter to itself: that is a wait, too
    while not took:
        now = time.perf_counter()
        waited, last = max(waited, now - last), now
    thread.join()
    return max(waited, time.perf_counter() - last) / took[0]
