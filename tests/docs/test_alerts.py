"""docs/alerts.yml and docs/dashboard.json: their form, and that each metric and section that they name exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine import CheckNote, MasterFigures, ReplicaFigures, rows_of
from fsstore.tree import metrics
from tests.docs.kept import reports
from tests.docs.test_references import anchors

DOCS = Path(__file__).resolve().parents[2] / "docs"
ALERTS, DASHBOARD = DOCS / "alerts.yml", DOCS / "dashboard.json"
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The metrics of a mount; those of a replica stand in the code alone, as the store under test is none."""
    found = set(reports()[1])
    found |= {f"fsstore_{name}" for name in re.findall(r'metric\("(copy_\w+)"', Path(metrics.__file__).read_text())}
    for prefix, record in {"check_": CheckNote, "replicas_": MasterFigures, "replica_": ReplicaFigures}.items():
        found |= {f"fsstore_{prefix}{row.metric or name}" for name, row in rows_of(record)}
    return found | {name + suffix for name in found if name.endswith("_seconds") for suffix in OF_HISTOGRAMS}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def named(expression: str) -> set[str]:
    return set(re.findall(r"fsstore_\w+", expression))


def test_each_rule_has_what_prometheus_and_a_reader_need() -> None:
    """Its form: by promtool too, where the package `prometheus` is installed."""
    assert len(rules()) > 10
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}, rule
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m")), rule
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule
        assert set(rule["annotations"]) == {"summary", "runbook"}, rule
        assert rule["expr"].count("(") == rule["expr"].count(")"), rule
    promtool = shutil.which("promtool")
    if promtool is not None:
        done = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"{len(rules())} rules found" in done.stdout


def test_each_rule_asks_for_metrics_that_there_are(known: set[str]) -> None:
    for rule in rules():
        of_ours = named(rule["expr"])
        assert of_ours or "node_textfile_mtime_seconds" in rule["expr"], rule
        assert of_ours <= known, of_ours - known


def test_each_rule_leads_to_a_section_of_the_docs() -> None:
    for rule in rules():
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        page = DOCS.parent / file
        assert page.exists(), rule
        assert not anchor or anchor in anchors(page), rule


def test_the_dashboard_shows_metrics_that_there_are(known: set[str]) -> None:
    board = json.loads(DASHBOARD.read_text())
    assert board["panels"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert named(target["expr"]), target
            assert named(target["expr"]) <= known, named(target["expr"]) - known
    assert named(board["templating"]["list"][1]["query"]["query"]) <= known
