"""Shared by the examples: a check of the mount before they begin, and sample data for empty stores."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Messages = Sequence[Mapping[str, object]]
"""Messages for `append@format=json`: body, keys, tags."""


def arguments(usage: str, samples: Sequence[Messages]) -> list[str]:
    """The command line: MOUNT, then a topic for each of `samples`, then the other arguments in `usage`.

    With --sample, the topics get their sample data first. Ends the program with an error if an argument, the mount or a
    topic is missing.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers run another Python, without fsstore
    given = [argument for argument in sys.argv[1:] if argument != "--sample"]
    if len(given) != len(usage.split()):
        sys.exit(f"usage: {sys.argv[0]} [--sample] {usage}")
    mount = Path(given[0])
    if not (mount / "@store").is_dir():
        sys.exit(f"no store is mounted at {mount}: mountctl mount STORE {mount}")
    for topic, sample in zip(given[1:], samples, strict=False):
        if "--sample" in sys.argv:
            publish(mount / topic, sample)
        elif not (mount / topic).is_dir():
            sys.exit(f"there is no topic {topic} below {mount}: --sample makes it, with sample data")
    return given


def publish(topic: Path, messages: Messages) -> None:
    """Publish messages to a topic, which is made if it does not exist."""
    topic.mkdir(exist_ok=True)
    (topic / "append@format=json").write_text("".join(json.dumps(message) + "\n" for message in messages))


def bodies(*records: Mapping[str, object]) -> Messages:
    """Messages whose bodies are JSON."""
    return [{"body": json.dumps(record)} for record in records]
