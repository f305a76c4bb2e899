"""State of a mount that outlives its server: inode numbers, open handles and unanswered requests.

| module | content |
|---|---|
| layout | the words of the shared memory |
| records | records by kind and key, appended and compacted |
| nodes, handles, requests | the meaning of inode numbers; open handles; requests that must not be done twice |
| shares | the part of the memory that each user may take |
| memory | the whole memory; deaths of servers, and the requests that are refused because of them |
| keeper | the link to the process that holds the memory and /dev/fuse |
"""
