"""README, CONTRIBUTING and the package docstrings agree with the code."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "app", "gateway", "gpu_workers", "activities", "workflows", "migrations", "sandbox", "db", "gyre",
    "benchmarks",
)  # fmt: skip
PACKAGES = sorted(path.parent for room in ROOMS for path in (ROOT / room).rglob("__init__.py"))


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_package_docstring_lists_its_modules(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    listed = re.findall(r"^ *(\w+(?:\.py|/)) ", docstring, re.MULTILINE)
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    packages = {f"{path.name}/" for path in folder.iterdir() if any(path.glob("*.py"))}
    assert sorted(listed) == sorted(modules | packages)


def floors_of_the_contract() -> list[set[str]]:
    """Return the floors of the layers contract, from the roof down."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [set(layer.split(" | ")) for layer in layers]


def test_the_readme_draws_the_floors_of_the_contract() -> None:
    picture = (ROOT / "README.md").read_text().split("The code stands on floors.")[1].split("```")[1]
    drawn = [set(line.split("  ")[0].split(" | ")) for line in picture.strip().splitlines()]
    assert drawn == floors_of_the_contract()


def test_contributing_tabulates_the_floors_of_the_contract() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Floors")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if re.match(r"\| \d", line)]
    assert [set(re.findall(r"`([a-z_.]+)`", row)) for row in rows] == floors_of_the_contract()


def test_every_room_has_a_line_in_the_readme() -> None:
    rows = re.findall(r"^\| `([a-z_]+)/` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(rows) == {*ROOMS, "examples", "tests"}
