"""The map names every module, in the part of its package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = re.search(r"^## Layers\n.*?^```\n(.*?)^```$", (ROOT / "ARCHITECTURE.md").read_text(), re.M | re.S)
PARTS = dict(re.findall(r"^  (\w+)/ +(.*?)(?=^  \w|\Z)", LAYERS[1], re.M | re.S)) if LAYERS else {}
A_COMMAND_A_FILE = "cli"


def modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}


def test_every_package_has_its_part():
    assert set(PARTS) == {path.parent.name for path in (ROOT / "anabranch").glob("*/__init__.py")}


@pytest.mark.parametrize("package", sorted(set(PARTS) - {A_COMMAND_A_FILE}))
def test_every_module_of_a_package_is_named_and_no_other(package: str):
    assert set(re.findall(r"(\w+)\.py\b", PARTS[package])) == modules(ROOT / "anabranch" / package)


def test_every_job_of_the_pipeline_is_named():
    (jobs,) = re.findall(r"^ +jobs/ +(.*)$", PARTS["pipeline"], re.M)
    assert set(jobs.split(", ")) == modules(ROOT / "anabranch" / "pipeline" / "jobs")
