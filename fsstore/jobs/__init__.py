"""Jobs that read, export and publish through the files of a mounted store alone. They import neither Spark nor the
engine, so executors of any cluster can run them."""
