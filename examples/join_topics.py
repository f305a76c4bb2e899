"""Two topics, joined by the keys of their messages: which orders have been paid, and after which time.

python examples/join_topics.py /mnt/mq orders payments    # --sample: publishes some of each first
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sample import arguments

from fsstore.spark import messages

ORDERS = [{"body": "12 apples", "keys": "ORDER-1"}, {"body": "7 pears", "keys": "ORDER-2"}]
PAYMENTS = [{"body": "9.50", "keys": "ORDER-2"}]


def joined(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """A row per order: its key, its body, the payment's body (null: none yet) and the milliseconds between the two."""
    left = keyed(orders).select("key", f.col("body").alias("ordered"), f.col("at").alias("ordered_at"))
    right = keyed(payments).select("key", f.col("body").alias("paid"), f.col("at").alias("paid_at"))
    waited = (f.col("paid_at") - f.col("ordered_at")).alias("waited_ms")
    return left.join(right, "key", "left").select("key", "ordered", "paid", waited)


def keyed(found: DataFrame) -> DataFrame:
    """A row for each key of each message."""
    at = f.unix_millis("store_time").alias("at")
    return found.select(f.explode("keys").alias("key"), f.col("body").cast("string").alias("body"), at)


def main(mount: str, orders: str, payments: str) -> None:
    """Print paid and unpaid orders."""
    spark = SparkSession.builder.appName("join topics").getOrCreate()
    for row in joined(messages(spark, mount, [orders]), messages(spark, mount, [payments])).orderBy("key").collect():
        print(row.key, row.ordered, "not paid" if row.paid is None else f"paid: {row.paid} after {row.waited_ms} ms")


if __name__ == "__main__":
    main(*arguments("MOUNT ORDERS PAYMENTS", [ORDERS, PAYMENTS]))
