"""Properties: a message's names and values, as one string in its record (docs/format.md, 2).

    name 0x01 value 0x02 name 0x01 value 0x02 ...     UTF-8; some versions write a last 0x02, some don't, both are read

Nothing is escaped, so a name or value holding a separator cannot be written, nor one holding a NUL: zeros are what a
lost disk sector reads as. RocketMQ reads an empty value as no property: so do we, and write it as given. The encoder
(engine.record.kernel.encode) writes them.
"""

from engine.record.kernel.decode import decode_properties as decode_properties
from engine.record.kernel.decode import find_property as find_property

KEYS = b"KEYS"
TAGS = b"TAGS"
UNIQUE_KEY = b"UNIQ_KEY"


def split_keys(text: str) -> list[str]:
    """The keys in a KEYS value: RocketMQ splits at single spaces and skips empty keys."""
    keys = text.split(" ")
    return [key for key in keys if key] if "" in keys else keys
