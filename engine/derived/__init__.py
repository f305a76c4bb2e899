"""Derived data: consume queues, index and marks, and how they are written, read, compared and made again."""
