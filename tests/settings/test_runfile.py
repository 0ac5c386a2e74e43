"""Values that a run could not work with are refused at the edge, with their key."""

from pathlib import Path

import pytest

from gyre.contracts.errors import BadInput
from gyre.settings import RunFile, load_run_file
from gyre.settings.runfile import frozen_differences

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
        ("loss", "kl_coefficient = -0.1"),
        ("loss", "entropy_coefficient = inf"),
        ("schedule", "group_size = true"),
        ("schedule", 'group_size = "8"'),
        ("schedule", "groups_per_batch = 8.0"),
        ("schedule", "group_size = 1000000"),
        ("limits", "memory_bytes = 9223372036854775807"),
        ("limits", "harness_s = true"),
        ("limits", 'harness_s = "60"'),
        ("loss", "normalise_std = 1"),
        ("sampling", "max_tokens = 2048"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key(tmp_path: Path, section: str, line: str) -> None:
    with pytest.raises(BadInput, match=rf"{section}\.{line.split()[0]} = "):
        load(tmp_path, f"[{section}]\n{line}\n")


def test_clips_must_be_in_order(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="clip_low must not exceed clip_high"):
        load(tmp_path, "[loss]\nclip_low = 1.1\n")


def test_terms_of_the_loss_are_frozen(tmp_path: Path) -> None:
    """A run that began before a key existed had its default, and may be resumed with it."""
    stored = load(tmp_path, "").resolved()
    del stored["loss"]["kl_coefficient"]
    assert frozen_differences(stored, load(tmp_path, "").resolved()) == []
    given = load(tmp_path, "[loss]\nkl_coefficient = 0.1\n").resolved()
    assert frozen_differences(stored, given) == ["loss.kl_coefficient: was 0.0, now 0.1"]


def test_a_supply_that_can_never_be_met_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"supply_fraction must not exceed .* which is 1\.5"):
        load(tmp_path, "[schedule]\nextra_dispatch = 0.5\nsupply_fraction = 1.51\n")
    met = load(tmp_path, "[schedule]\nextra_dispatch = 0.5\nsupply_fraction = 1.5\n")
    assert met.schedule.supply_fraction == 1.5


def test_a_name_with_a_newline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"run\.name = .* a name must be 1 to 40"):
        load(tmp_path, "", name="r\\n")


def test_a_limited_top_k_is_accepted(tmp_path: Path) -> None:
    assert load(tmp_path, "[sampling]\ntop_k = 20\n").sampling.top_k == 20


@pytest.mark.parametrize("line", ["updates = 1000001", "seed = -1", "seed = 9223372036854775808"])
def test_a_value_of_the_run_section_out_of_range_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.toml").write_text(HEAD.format(name="r").replace("[model]", f"{line}\n[model]"))
    with pytest.raises(BadInput, match=rf"run\.{line}: "):
        load_run_file(tmp_path / "run.toml")


def test_an_integer_is_accepted_for_a_float(tmp_path: Path) -> None:
    loaded = load(tmp_path, "[limits]\nharness_s = 60\n[sampling]\ntemperature = 1\n")
    assert (loaded.limits.harness_s, loaded.sampling.temperature) == (60.0, 1.0)
    assert RunFile.model_validate(loaded.resolved()).fingerprint() == loaded.fingerprint()


def test_a_bad_name_is_shown_without_its_section(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"toml: run\.name = 'Qa 1/\.\./x': a name must be"):
        load(tmp_path, "", name="Qa 1/../x")


def test_something_else_than_a_run_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="it is a folder"):
        load_run_file(tmp_path)
    (tmp_path / "run.toml").write_text("run = 3\n")
    with pytest.raises(BadInput, match="run = 3: it must be a section"):
        load_run_file(tmp_path / "run.toml")
