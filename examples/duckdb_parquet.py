"""DuckDB over `@parquet`: SQL on a mounted store, without any server.

python examples/duckdb_parquet.py /mnt/mq orders
"""

from __future__ import annotations

import sys

import duckdb

QUERY = """
    select queue, tags, count(*) as messages, sum(octet_length(body)) as bytes, max(queue_offset) as newest
    from read_parquet($files, hive_partitioning = true)
    group by queue, tags order by queue, tags
"""


def main(mount: str, topic: str) -> None:
    """How many messages of which tag each queue of the topic has."""
    files = f"{mount}/@parquet/topic={topic}/*/*.parquet"
    for row in duckdb.execute(QUERY, {"files": files}).fetchall():
        print(*row)


if __name__ == "__main__":
    main(*sys.argv[1:])
