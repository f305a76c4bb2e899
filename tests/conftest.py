"""Settings that every room's tests share."""

import gc
import signal
from pathlib import Path

import pytest
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


LONGEST = (
    *("spark/test_fleet_stream.py", "spark/test_source.py", "spark/test_export.py", "spark/test_cluster.py"),
    *("mount/test_outlives.py", "mount/test_restart.py", "mountctl/test_help.py", "mountctl/test_where.py"),
    *("mountctl/test_verbs.py", "mountctl/test_mount.py", "mountctl/test_serve_promises_hosts.py"),
    *("mountctl/test_replication_promises_copy.py", "mountctl/test_sql.py", "mount/test_semantics_outliving.py"),
    *("mount/test_semantics_disks.py", "mount/test_programs.py", "mount/test_unprivileged.py"),
    *("durability/test_readerrors.py", "durability/test_bounds.py", "durability/test_refused_reads.py"),
    *("durability/test_wide.py", "durability/test_neighbours.py", "durability/test_damage.py"),
)
"""Files that run first where files are shared out to processes: one that began last would run alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the longest files to the beginning."""
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """Loaded and collected objects stay: the tests' many garbage collections need not visit them."""
    gc.freeze()
