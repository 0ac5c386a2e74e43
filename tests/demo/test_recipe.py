"""The demo's run file is valid, survives writing and reading, and is big enough for its promises."""

from pathlib import Path

import pytest

from app.demo import recipe
from app.demo.command import require_harness, run_name
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RUN_NAME
from gyre.settings import load_run_file


def test_a_written_file_reads_as_the_same_run_file(tmp_path: Path) -> None:
    given = recipe.run_file(
        name="demo-s1",
        seed=1,
        updates=15,
        control="permuted",
        harness="tiny",
        model=tmp_path / "model",
        tasks=tmp_path / "tasks",
    )
    path = tmp_path / "run.toml"
    path.write_text(recipe.run_file_text(given))
    assert load_run_file(path) == given


def test_there_are_at_least_400_heldout_rollouts_per_phase() -> None:
    assert recipe.NUM_HELDOUT * recipe.SAMPLES >= 400


def test_the_example_is_the_demos_run_file() -> None:
    example = Path(__file__).parents[2] / "examples" / "demo.toml"
    loaded = load_run_file(example)
    tuned = recipe.run_file(
        name=loaded.run.name,
        seed=loaded.run.seed,
        updates=recipe.UPDATES,
        control="none",
        harness="tiny",
        model=loaded.model.path,
        tasks=loaded.tasks.train.parent,
    )
    assert loaded == tuned


@pytest.mark.parametrize("control", ["none", "permuted"])
def test_run_names_are_valid(control: str) -> None:
    assert RUN_NAME.match(run_name(123456, control))


def test_a_harness_that_the_warm_up_does_not_teach_is_refused() -> None:
    with pytest.raises(BadInput, match="allowed: tiny"):
        require_harness("claude-code")
    require_harness("tiny")
