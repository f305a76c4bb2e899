"""An HTTP server beside a mount, which reads it for clients: WebHDFS for Hadoop and Spark, plain files for the rest.

    stream        TCP connections on trio's loop
    connection    one connection: requests by llhttp, time limits, files by sendfile
    access        the client of a request: its token, its certificate, or the user of its socket
    shares        the part of connections and threads that one client may hold
    tree          the mount's files: which are served, opened below its root
    webhdfs       answers of the WebHDFS protocol
    files         answers with plain files, and the files of a dataset
    server        ties these together: listens, answers, counts, logs

The server is a process of its own, and one user to the mount. It loads no FUSE; no mount loads it.
"""
