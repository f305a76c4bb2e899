"""Several brokers' stores: where they are, what they hold, and which of them hold the same log. No Spark.

places      names of places, and the file that names groups of them
identity    whether two places hold the same log
datasets    the files of `@parquet/` at a place, mounted or served; which of them a plan lacks
"""
