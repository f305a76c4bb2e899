"""What a process that opens a store needs of the system."""

import resource


def raise_open_files() -> None:
    """Allow as many descriptors as the system lets us have: the more there are, the more files a store keeps mapped."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
