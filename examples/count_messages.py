"""Count the messages of each topic of a store, which may have a live writer: nothing is locked or changed.

python examples/count_messages.py ~/store
"""

import sys

from engine import MessageStore, OpenMode, StoreConfig


def main(path: str) -> None:
    """Print each topic with its number of messages."""
    with MessageStore.open(path, StoreConfig(mode=OpenMode.FOLLOW)) as store:
        for topic in store.topics():
            messages = sum(store.bounds(topic, queue).count for queue in store.queues(topic))
            print(f"{messages:>12,}  {topic}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} STORE")
    main(sys.argv[1])
