"""What a mount's next server takes over when its server was killed, or left: numbers, handles, requests.

| module | what |
|---|---|
| layout | the shared memory, word by word |
| records | records by kind and key, appended and compacted |
| nodes, handles, requests | what the kernel's numbers stand for, what is open, what may not be done twice |
| shares | how much of it each user may take |
| memory | all of it; deaths, and the requests that are refused for them |
| keeper | the link to the process that holds the memory and /dev/fuse |
"""
