"""DuckDB over `@parquet`: SQL on a mounted store, without any server.

python examples/duckdb_parquet.py /mnt/mq orders    # --sample: publishes some orders first
"""

from __future__ import annotations

import duckdb
from sample import arguments

SAMPLE = [{"body": f"{number} apples", "tags": "paid" if number % 3 else "new"} for number in range(10)]

QUERY = """
    select queue, tags, count(*) as messages, sum(octet_length(body)) as bytes, max(queue_offset) as newest
    from read_parquet($files, hive_partitioning = true)
    group by queue, tags order by queue, tags
"""


def main(mount: str, topic: str) -> None:
    """Print the number of messages by queue and tag."""
    files = f"{mount}/@parquet/topic={topic}/*/*.parquet"
    found = duckdb.execute(QUERY, {"files": files})
    print(*(column[0] for column in found.description))
    for row in found.fetchall():
        print(*row)


if __name__ == "__main__":
    main(*arguments("MOUNT TOPIC", [SAMPLE]))
