"""Values that a run could not live with are refused at the edge, with the key."""

from pathlib import Path

import pytest

from gyre.contracts.errors import BadInput
from gyre.settings import RunFile, load_run_file

HEAD = """
[run]
name = "{name}"
[model]
path = "model"
[tasks]
train = "tasks"
"""


def load(folder: Path, more: str, name: str = "r") -> RunFile:
    file = folder / "run.toml"
    file.write_text(HEAD.format(name=name) + more)
    return load_run_file(file)


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("limits", "harness_s = inf"),
        ("limits", "total_s = 1e300"),
        ("limits", "evaluate_s = nan"),
        ("schedule", "supply_hold_s = inf"),
        ("sampling", "temperature = inf"),
        ("sampling", "top_k = 0"),
        ("sampling", "top_k = -2"),
        ("optimizer", "lr = inf"),
        ("optimizer", "beta1 = 1.0"),
        ("optimizer", "beta2 = -0.1"),
        ("optimizer", "eps = 0.0"),
        ("loss", "weight_cap = inf"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key(tmp_path: Path, section: str, line: str) -> None:
    with pytest.raises(BadInput, match=rf"{section}\.{line.split()[0]} = "):
        load(tmp_path, f"[{section}]\n{line}\n")


def test_clips_must_be_in_order(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="clip_low must not exceed clip_high"):
        load(tmp_path, "[loss]\nclip_low = 1.1\n")


def test_a_supply_that_can_never_be_met_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"supply_fraction must not exceed .* which is 1\.5"):
        load(tmp_path, "[schedule]\nextra_dispatch = 0.5\nsupply_fraction = 1.51\n")
    met = load(tmp_path, "[schedule]\nextra_dispatch = 0.5\nsupply_fraction = 1.5\n")
    assert met.schedule.supply_fraction == 1.5


def test_a_name_with_a_newline_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="name must be 1 to 40"):
        load(tmp_path, "", name="r\\n")


def test_a_limited_top_k_is_taken(tmp_path: Path) -> None:
    assert load(tmp_path, "[sampling]\ntop_k = 20\n").sampling.top_k == 20
