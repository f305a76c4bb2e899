"""The public names for Spark users. Importing this package loads pyspark, but neither FUSE nor pyarrow.

from fsstore.spark import FsstoreSource, write_topic

from fsstore.spark import fleet, messages

fleet(spark, {"a": "http://broker-a:9870", "b": "/mnt/b"}).messages(["orders"]).groupBy("broker").count().show()
messages(spark, "/mnt/mq").where("topic = 'orders' and store_time > '2026-11-01'").groupBy("tags").count().show()

spark.dataSource.register(FsstoreSource)
stream = spark.readStream.format("fsstore").option("subscribe", "orders").load("/mnt/mq")
stream.writeStream.foreachBatch(lambda batch, _: write_topic(batch, "/mnt/mq", "copies")).start()
"""

from fsstore.fleet.datasets import BrokerError, ExpiredFilesError
from fsstore.fleet.identity import SameNameError
from fsstore.jobs.mount import DataLossError, MountGoneError
from fsstore.spark.fleet import fleet
from fsstore.spark.frame import MESSAGE_SCHEMA, messages
from fsstore.spark.offsets import SourceOptionError
from fsstore.spark.source import FsstoreSource
from fsstore.spark.writing import write_topic

__all__ = [
    "MESSAGE_SCHEMA",
    "BrokerError",
    "DataLossError",
    "ExpiredFilesError",
    "FsstoreSource",
    "MountGoneError",
    "SameNameError",
    "SourceOptionError",
    "fleet",
    "messages",
    "write_topic",
]
