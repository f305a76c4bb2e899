"""Answers: what a master says to a replica beside the log: its settings, the log's bounds, and the files in config/."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import StoreError
from engine.files.paths import read_file
from engine.replication.remoting import MAX_COMMAND_BYTES, REQUEST_CODE_NOT_SUPPORTED, SYSTEM_ERROR, Command, Request
from engine.settings.config import MasterConfig
from engine.settings.config_file import backup_of

if TYPE_CHECKING:
    from engine.derived.store_files import StoreFiles

CLUSTER = "DefaultCluster"
MAX_BODY_BYTES = MAX_COMMAND_BYTES - (64 << 10)
_VERSION = {"dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0}}
_FILES: dict[int, tuple[str, dict[str, object]]] = {
    Request.GET_ALL_TOPIC_CONFIG: ("topics.json", {**_VERSION, "topicConfigTable": {}}),
    Request.GET_ALL_CONSUMER_OFFSET: ("consumerOffset.json", {"offsetTable": {}}),
    Request.GET_ALL_DELAY_OFFSET: ("delayOffset.json", {"offsetTable": {}}),
    Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ("subscriptionGroup.json", {**_VERSION, "subscriptionGroupTable": {}}),
}
"""The file in config/ that answers a request as it is, and the answer without the file."""


class Answers:
    """Answers six read-only requests, and refuses all others. Thread safety: any thread."""

    def __init__(self, files: StoreFiles, config: MasterConfig, broker: str) -> None:
        """`broker` is the store's name to replicas."""
        self._files = files
        self._config = config
        self._broker = broker

    def to(self, command: Command) -> bytes:
        """The encoded answer to a request."""
        bodies: dict[int, Callable[[], bytes]] = {
            Request.GET_BROKER_CONFIG: self._settings,
            Request.GET_BROKER_RUNTIME_INFO: self._runtime_info,
        }
        code = command.code
        body = bodies.get(code) or (lambda: self._file(code))
        if code not in bodies and code not in _FILES:
            return command.refusal(REQUEST_CODE_NOT_SUPPORTED, f"request type {code} not supported").encode()
        try:
            return command.answer(body()).encode()
        except (OSError, StoreError, ValueError) as error:
            return command.refusal(SYSTEM_ERROR, f"{Request(code).name}: {error}").encode()

    def _settings(self) -> bytes:
        sizes, config = self._files.sizes, self._config
        settings = {
            "brokerClusterName": CLUSTER,
            "brokerName": self._broker,
            "brokerId": 0,
            "brokerRole": config,
            "listenPort": config.remoting_port,
            "haListenPort": config.ha_port,
            "mappedFileSizeCommitLog": sizes.commit_log_bytes,
            "mappedFileSizeConsumeQueue": sizes.consume_queue_bytes,
            "maxHashSlotNum": sizes.index_slots,
            "maxIndexNum": sizes.index_entries,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()

    def _runtime_info(self) -> bytes:
        commit_log = self._files.log
        figures = {
            "brokerVersionDesc": "fsstore",
            "commitLogMinOffset": str(commit_log.min_offset),
            "commitLogMaxOffset": str(commit_log.readable_end),
        }
        return json.dumps({"table": figures}).encode()

    def _file(self, code: int) -> bytes:
        """The file as it is, or its backup. OSError, ObstructedError; ValueError: it is too long for an answer."""
        name, otherwise = _FILES[code]
        path = self._files.layout.config / name
        return _text(path) or _text(backup_of(path)) or json.dumps(otherwise).encode()


def _text(path: Path) -> bytes:
    try:
        return read_file(path, MAX_BODY_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return b""
