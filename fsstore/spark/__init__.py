"""What a Spark user imports. Importing this package loads pyspark, and neither FUSE nor the engine's files.

from fsstore.spark import messages

messages(spark, "/mnt/mq").where("topic = 'orders' and store_time > '2026-11-01'").groupBy("tags").count().show()
"""

from fsstore.spark.messages import MESSAGE_SCHEMA, messages

__all__ = ["MESSAGE_SCHEMA", "messages"]
