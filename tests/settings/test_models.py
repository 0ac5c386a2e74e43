"""A model directory that cannot be loaded is refused before anything starts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.contracts.errors import BadInput
from gyre.settings.models import check_model
from tests.settings.model_folder import write_model

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda model: (model / name).write_bytes(content)


def _cut(model: Path) -> None:
    content = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(content[:-1])


def test_a_valid_model_passes_as_one_file_or_sharded(model: Path) -> None:
    check_model(model, 512)
    (model / WEIGHTS).rename(model / "a.safetensors")
    (model / INDEX).write_text(json.dumps({"weight_map": {"norm.weight": "a.safetensors"}}))
    check_model(model, 512)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_write(WEIGHTS, b""), "not a safetensors file"),
        (_write(WEIGHTS, b"<html>not a model</html>"), "not a safetensors file"),
        (_write(WEIGHTS, (2).to_bytes(8, "little") + b"[]"), "header cannot be read"),
        (_write(WEIGHTS, (2).to_bytes(8, "little") + b"{}"), "holds no tensor"),
        (_cut, "where its header describes"),
        (_write("tokenizer.json", b"{}"), "not a tokenizer"),
        (_write("tokenizer.json", b""), "not a tokenizer"),
        (_write("config.json", b"[]"), "must hold a JSON object"),
        (_write("tokenizer_config.json", b"[]"), "must hold a JSON object"),
        (_write(INDEX, b"[]"), "must hold a JSON object"),
        (_write(INDEX, b'{"weight_map": []}'), "weight_map names no file"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(
    model: Path, spoil: Callable[[Path], object], sentence: str
) -> None:
    spoil(model)
    with pytest.raises(BadInput, match=sentence) as refused:
        check_model(model, 512)
    assert "\n" not in str(refused.value)
