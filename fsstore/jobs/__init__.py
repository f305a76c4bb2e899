"""Jobs over a mounted store: what they read, export and publish, through its files alone. No Spark in here, and nothing
of the engine: executors of any cluster run it."""
