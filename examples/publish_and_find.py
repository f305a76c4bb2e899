"""The engine without a mount: publish, read in order, look up by key and by time.

python examples/publish_and_find.py /tmp/my-store
"""

import sys
import time

from engine import Message, MessageStore


def main(path: str) -> None:
    """Publish three orders and find them again."""
    with MessageStore.open(path, create=True) as store:
        before_ms = int(time.time() * 1000)
        for number, fruit in enumerate(("apples", "pears", "plums")):
            body = f"{number + 7} {fruit}".encode()
            put = store.put(Message("orders", body, keys=[f"ORDER-{number}"], tags="paid"), queue=0)
        store.wait_durable(put.physical_end)

        first = store.offset_at("orders", 0, before_ms)
        for message in store.read("orders", 0, first):
            print(message.queue_offset, bytes(message.body).decode(), message.tags, message.msg_id)

        found = store.newest_with_key("orders", "ORDER-1")
        assert found is not None
        print("ORDER-1:", bytes(found.body).decode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} STORE")
    main(sys.argv[1])
