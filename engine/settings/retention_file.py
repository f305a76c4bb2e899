"""config/retention.json: what of a store may be deleted, and when (docs/format.md, 11). Ours; a broker ignores it.

    {"fileReservedTime": 72, "deleteWhen": "04", "diskMaxUsedSpaceRatio": 75}

The names are those of broker.conf, and `maxBytes`. Where the file is missing nothing is ever deleted.
"""

from pathlib import Path

from engine.errors import ConfigFileError, OptionError
from engine.settings.broker_options import retention_from
from engine.settings.config import Retention
from engine.settings.config_file import read_config


def read_retention(path: Path) -> Retention | None:
    """The retention that the file at `path` asks for; None when it is not there or empty. ConfigFileError."""
    options = read_config(path)
    if not options:
        return None
    try:
        return retention_from(options)
    except OptionError as error:
        raise ConfigFileError(path, str(error)) from error
