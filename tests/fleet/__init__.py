"""The proof that many hosts are read as one: `./run fleet`.

    hosts      hosts in namespaces of their own, the network between them, and the bytes on it
    brokers    a broker of RocketMQ on a host, the mount of its store, and the server of that mount
    claims     what is claimed, one after the other, over real Spark, Polars, pandas and DuckDB

Hosts, network and processes end with the run, whatever ends it.
"""
