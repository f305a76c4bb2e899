"""`@parquet/`: the store as a virtual Parquet dataset, one file for a range of a queue.

    names.py      what a name says                            no store
    segments.py   where a queue's files begin and end         entries of the consume queue
    layout.py     a file's size and its row groups            sizes of records: nothing is rendered
    format.py     the columns, and how metadata is written    one table; Thrift's compact protocol
    pages.py      how values are encoded                      sized before they are made
    row_groups.py the columns of some messages                engine's blocks
    file_map.py   where each column stands, and the footer
    cache.py      rendered bytes, in memory
    dataset.py    ties them together                          any thread
    nodes.py      directories, files and handles              the filesystem's thread

A name is a range of queue offsets, and everything about the file follows from the messages in it. Its size is a bound
that is computed from sizes alone; the footer stands at the end, and what is left over before it reads as zeros. Readers
of Parquet follow the footer's offsets and never meet them.
"""
