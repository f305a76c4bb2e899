"""The messages of many brokers as one DataFrame: a scan of each broker's files, and a column with its name.

Spark reads a server's files by Hadoop's own client of WebHDFS. Each scan has one broker's files, so Spark makes no task
of several brokers' files, and can run each on the host that has them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.functions import lit

from fsstore.fleet.identity import Witness, roles
from fsstore.fleet.places import PlaceError, group_of, parse_place
from fsstore.fleet.sources import Source, source_of
from fsstore.spark.frame import ERROR, Wanted, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("fsstore.spark")


class Fleet:
    """The stores of several brokers."""

    def __init__(self, spark: SparkSession, sources: Sequence[Source]) -> None:
        self._spark = spark
        self._sources = sources

    def messages(
        self, topics: Sequence[str] | None = None, *, since: datetime | None = None, until: datetime | None = None,
        onExpired: str = ERROR, locations: bool | None = None,
    ) -> DataFrame:  # fmt: skip
        """All messages of all brokers, or those of `topics`, stored in [since, until), with the columns of
        MESSAGE_SCHEMA and `broker`. Of places with one log, the fullest is read. The messages of each broker are those
        at the moment at which its files are listed, in this call.

        `onExpired`: files that expire until Spark has listed them are an ExpiredFilesError, or are left out with a
        warning ("skip"); then files that expire later are left out, too. `locations`: whether Spark asks a server for
        each file where it lies; None: of up to 4,000 files a broker. BrokerError, MountGoneError, SameNameError.
        """
        wanted = Wanted(topics, since, until, onExpired)
        with ThreadPoolExecutor(len(self._sources), "fsstore-list") as threads:
            chosen = roles(list(zip(self._sources, threads.map(self._witness, self._sources), strict=True)))
        for spare, read in chosen.spare:
            words = spare.broker, spare.place, read.broker, read.place
            log.warning("broker %s at %s has the log of broker %s at %s, which is read", *words)
        with ThreadPoolExecutor(max(len(chosen.read), 1), "fsstore-list") as threads:
            asked = list(threads.map(wanted.files, chosen.read))
        for topic in {*(topics or ())} - {file.part.topic for files in asked for file in files}:
            log.warning("no broker has messages of topic %r there", topic)
        frames = [
            frame_of(self._spark, source, wanted, files, locations).withColumn("broker", lit(source.broker))
            for source, files in zip(chosen.read, asked, strict=True)
        ]
        return reduce(lambda first, second: first.unionAll(second), frames)

    def _witness(self, source: Source) -> Witness:
        """A place's witness; where it is the only one, nothing is compared."""
        return source.witness() if len(self._sources) > 1 else Witness(0, None)


def fleet(spark: SparkSession, *places: Mapping[str, str] | str) -> Fleet:
    """The brokers at these places: mappings of names to URLs of servers and mounts of this host, and groups of the
    fleet file (`@prod`). FleetFileError, PlaceError: there is none, or Spark can't read one."""
    named = [
        place
        for some in places
        for place in (group_of(some) if isinstance(some, str) else [parse_place(*one[::-1]) for one in some.items()])
    ]
    if not named:
        raise PlaceError("", "a fleet has a place")
    tokens = _tokens(spark)
    return Fleet(spark, [source_of(place, tokens) for place in named])


def _tokens(spark: SparkSession) -> dict[str, str]:
    """Tokens for servers, by address, that Hadoop has in the driver: those of HADOOP_TOKEN_FILE_LOCATION."""
    jvm = spark._jvm
    assert jvm is not None
    known = jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getTokens().toArray()
    return {
        str(token.getService()): bytes(token.getPassword()).decode("utf-8")
        for token in known
        if str(token.getKind()).endswith("WEBHDFS delegation")
    }
