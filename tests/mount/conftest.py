"""Mounts that several tests share, so that the room takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.mount import harness
from tests.mount.harness import Mounted
from tests.mountctl.conftest import Site
from tests.mountctl.conftest import quick_starts as quick_starts
from tests.mountctl.conftest import site as site  # where `mountctl mount` is tried


@pytest.fixture(scope="session")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One store, mounted to be written, for every test that needs nothing special: a test makes its own topics."""
    with harness.mounted(tmp_path_factory.mktemp("shared")) as shared:
        yield shared


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return count()


@pytest.fixture
def new_topic(mount: Mounted, _numbers: Iterator[int]) -> Callable[[], Path]:
    """Makes a topic of the shared mount that no other test uses."""
    return lambda: mount.topic(f"topic-{next(_numbers)}")


@pytest.fixture
def topic(new_topic: Callable[[], Path]) -> Path:
    """A new topic of four queues in the shared mount."""
    return new_topic()


@pytest.fixture
def queue(topic: Path) -> Path:
    """The first queue of a new topic in the shared mount."""
    return topic / "0"


@pytest.fixture
def mounted(site: Site) -> Site:
    """A store of its own, mounted by `mountctl mount`, with the topic `t`."""
    site.mounted()
    (site.mountpoint / "t").mkdir()
    return site


@pytest.fixture
def mounted_queue(mounted: Site) -> Path:
    """The first queue of the topic of `mounted`."""
    return mounted.mountpoint / "t/0"
