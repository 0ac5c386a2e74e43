"""The README's tree names every source file, and no file that is not there."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("gyre", "gateway", "workflows", "activities", "gpu_workers", "db")


def listed() -> set[str]:
    """Python files of the tree: an indented name belongs to the folder above it."""
    tree = (ROOT / "README.md").read_text().split("## The tree")[1].split("```")[1]
    folder, found = "", set[str]()
    for line in tree.strip().splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            folder = name
        elif name.endswith(".py"):
            found.add(folder + name)
        else:
            assert (ROOT / folder / name).is_dir(), name
    return found


def test_the_tree_names_every_source_file() -> None:
    files = {str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert listed() == {name for name in files if not name.endswith("__init__.py")}
