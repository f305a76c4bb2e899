"""Settings that every room's tests share."""

import gc
import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fsstore",
    derandomize=True,  # the same examples at a desk and in CI
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fsstore")

# a script that starts this in the background has us ignore Ctrl-C, and so would all that tests start and interrupt
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Loaded and collected objects stay: the tests' many garbage collections need not visit them."""
    gc.freeze()
