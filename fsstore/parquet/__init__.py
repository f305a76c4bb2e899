"""`@parquet/`: the store as a virtual Parquet dataset, one file for a range of a queue.

    names.py      what a name says                        no pyarrow, no store
    segments.py   where a queue's files begin and end     entries of the consume queue
    layout.py     a file's size and its row groups        headers: nothing is rendered
    render.py     the bytes                               pyarrow
    cache.py      rendered bytes, in memory and on disk
    dataset.py    ties them together                      any thread
    nodes.py      directories, files and handles          the filesystem's thread

A name is a range of queue offsets, and everything about the file follows from the messages in it. Its size is a bound
that is computed from sizes alone: each row group has a place of fixed length, the footer stands at the end, and what a
place has left over reads as zeros. Readers of Parquet follow the footer's offsets and never meet them.
"""
