NEWEST: int

def walk_chain(
    view: memoryview, slots: int, entries: int, key_hash: int, number: int, most: int
) -> tuple[list[int], int]: ...
