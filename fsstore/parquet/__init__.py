"""`@parquet/`: the store as a virtual Parquet dataset, with one file for a range of a queue.

    names.py      parse and write names                       no store
    segments.py   the ranges of a queue's files               entries of the consume queue
    layout.py     a file's size and its row groups            sizes of records: nothing is rendered
    format.py     columns and metadata                        one table; Thrift's compact protocol
    pages.py      values to bytes                             sizes are computed first
    row_groups.py the columns of some messages                the engine's blocks
    file_map.py   the position of each column; the footer
    kept.py       a whole segment, kept below the store for later mounts
    cache.py      rendered bytes, in memory
    dataset.py    all of these together                       any thread
    nodes.py      directories, files and handles              the filesystem's thread

A name is a range of queue offsets, and all bytes of the file follow from the messages in it. The size is an upper bound
that is computed from sizes alone; the footer stands at the end, and the gap before it reads as zeros. Readers of
Parquet follow the footer's offsets and never read the gap.
"""
