"""Several brokers' stores: where they are, what they hold, and which of them hold the same log. No Spark.

places           names of places, and the file that names groups of them
sources          the store at a place, mounted or served, as readers ask it
http             a client of `mountctl serve`
hadoop_tokens    tokens as Hadoop's clients carry them
identity         whether two places hold the same log
unusable         the error of a user's file that can't be used
datasets         the files of `@parquet/` by their names; which of them a plan lacks
"""
