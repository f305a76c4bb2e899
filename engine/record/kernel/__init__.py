"""The compiled kernel: bytes to values and back, over buffers (docs/architecture.md). No I/O, no threads, no policy.

    layout.pxd   big-endian loads and stores, Java's hash, look-up of a property: inlined into the others
    records.pxd  where the parts of one record are: inlined into those that look at many
    pages        memory with one owner
    files        mapped files, and whether they are still as long
    crc          CRC-32
    decode       one record into a message, properties, runs of messages
    chain        entries of an index file that share a bucket
    scan         records of a file: following frames, finding records' parts, checking bodies
    search       records and ranges of bytes that hold a text
    columns      ranges of bytes: gathering, properties, words, hashes, numbers for few different ones
    encode       messages and lines into records
    keys         keys that wait for the index, and how its files chain them
    append       one record, its entry and its keys, at the end of the log

Each module is a `.pyx` with a `.pyi` beside it; `./run` compiles them when they changed.
"""
