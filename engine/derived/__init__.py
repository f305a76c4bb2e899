"""What follows from the log: consume queues, the index, marks; how it is written, read, compared and made again."""
