"""Several brokers' stores as one: where they are, what they hold, and which of them hold the same log.

places      names of places, and the file that names groups of them
"""
