"""Sessions of a web log: clicks of a user at most half an hour apart.

python examples/sessionize.py /mnt/mq clicks sessions    # --sample: publishes some clicks first

Reads the topic `clicks`, whose messages are JSON like {"user": "ada", "at": "2026-11-22T10:00:00Z", "path": "/cart"},
and publishes a message for each session to the topic `sessions`, with the user as its key.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from sample import arguments, bodies

from fsstore.spark import messages, write_topic

PAUSE_SECONDS = 1_800
CLICK = "user string, at timestamp, path string"
SAMPLE = bodies(
    {"user": "ada", "at": "2026-11-22T10:00:00Z", "path": "/"},
    {"user": "bob", "at": "2026-11-22T10:10:00Z", "path": "/pears"},
    {"user": "ada", "at": "2026-11-22T10:20:00Z", "path": "/cart"},
    {"user": "ada", "at": "2026-11-22T18:00:00Z", "path": "/orders"},
)


def sessions(clicks: DataFrame) -> DataFrame:
    """A row per session: user, begin, end, clicks, and the path of the first."""
    of_user = Window.partitionBy("user").orderBy("at")
    pause = f.col("at").cast("double") - f.lag("at").over(of_user).cast("double")
    begins = f.when(pause <= PAUSE_SECONDS, 0).otherwise(1)
    numbered = clicks.withColumn("begins", begins).withColumn("session", f.sum("begins").over(of_user))
    return numbered.groupBy("user", "session").agg(
        f.min("at").alias("begin"), f.max("at").alias("end"), f.count("*").alias("clicks"),
        f.min_by("path", "at").alias("landing"),
    )  # fmt: skip


def main(mount: str, topic: str, target: str) -> None:
    """Read one topic, publish to the other."""
    spark = SparkSession.builder.appName("sessionize").getOrCreate()
    bodies = messages(spark, mount, [topic]).select(f.from_json(f.col("body").cast("string"), CLICK).alias("click"))
    found = sessions(bodies.select("click.*").where("user is not null"))
    published = write_topic(found.select(f.to_json(f.struct("*")).alias("body"), "user"), mount, target, key="user")
    print(f"{published} sessions")


if __name__ == "__main__":
    main(*arguments("MOUNT CLICKS SESSIONS", [SAMPLE]))
