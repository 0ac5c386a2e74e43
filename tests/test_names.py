"""A class name means one thing in the whole repository, and a test name needs no key to be read."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "app", "gateway", "gpu_workers", "activities", "workflows", "migrations", "sandbox", "db", "gyre",
    "benchmarks", "examples", "tests",
)  # fmt: skip


def definitions(kind: type[ast.ClassDef | ast.FunctionDef]) -> Iterator[tuple[str, str]]:
    """Yield the name and the place of every definition of this kind."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, kind):
                    yield node.name, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_class_name_has_two_meanings() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, place in definitions(ast.ClassDef):
        places[name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_test_name_carries_a_code() -> None:
    coded = [
        place for name, place in definitions(ast.FunctionDef) if re.match(r"test_(?!s3_)[a-z]\d+_", name)
    ]
    assert coded == []
