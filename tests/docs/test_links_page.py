"""What the docs draw and the dashboard asks for is what the code has."""

import json
import re
from pathlib import Path

from anabranch.replicate.measuring import GAUGES
from anabranch.replicate.states import CUE_WORDS, diagram

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "links.md").read_text()


def test_the_diagram_of_a_link_is_drawn_from_its_table():
    assert f"```mermaid\n{diagram()}\n```" in PAGE


def test_every_cue_is_explained():
    for cue, words in CUE_WORDS.items():
        assert f"| `{cue}` | {words} |" in PAGE


def test_the_dashboard_asks_only_for_metrics_that_there_are_and_for_every_one_of_links():
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:anabranch|sync)_\w+", target["expr"])
    }
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(\w+)` \|", reference, re.MULTILINE))
    assert {name.removesuffix("_bucket") for name in asked} <= known
    assert set(GAUGES) <= asked


def test_the_dashboards_lines_tell_links_and_nodes_apart():
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    for target in (target for panel in dashboard["panels"] for target in panel["targets"]):
        if "sum by" not in target["expr"]:
            assert "{{instance}}" in target["legendFormat"]
            assert ("{{scope}}" in target["legendFormat"]) is ("sync_" in target["expr"])
