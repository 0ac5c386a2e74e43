"""Heads that are encoded once give the ids that the whole text gives."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from gateway.encoding import LONG_HEAD, Encoder
from tests.gateway.tiny_model import build_tokenizer

END = "<|im_end|>"
words = st.lists(
    st.sampled_from(["hello", " ", "\n", "é", END, "<|im_start|>", "<|im_", "end|>", "7"]), max_size=12
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return build_tokenizer(tmp_path_factory.mktemp("model"))


@given(before=words, after=words)
def test_a_cut_at_the_end_of_a_turn_changes_no_id(
    tokenizer: PreTrainedTokenizerFast, before: list[str], after: list[str]
) -> None:
    text = "x" * LONG_HEAD + "".join(before) + END + "".join(after)
    encoder = Encoder(tokenizer, END)
    whole = tokenizer.encode(text, add_special_tokens=False)
    assert encoder.encode(text).tolist() == whole
    assert encoder.encode(text).tolist() == whole, "the head as it is kept"


def test_a_head_is_encoded_once(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer, END)
    head = "tool " * LONG_HEAD + END
    for rest in ("one", "two", "three"):
        encoder.encode(head + rest)
    assert (encoder.heads.misses, encoder.heads.hits) == (1, 2)


@pytest.mark.parametrize(
    "token",
    [
        AddedToken(END, special=True, normalized=False, rstrip=True),
        AddedToken(END, special=True, normalized=False, lstrip=True),
        AddedToken(f"{END}{END}", special=True, normalized=False),
        AddedToken("x<|im", special=True, normalized=False),
    ],
    ids=["eats what follows", "eats what comes before", "longer token", "overlapping token"],
)
def test_tokenizers_that_do_not_cut_there_encode_the_whole(tmp_path: Path, token: AddedToken) -> None:
    own = build_tokenizer(tmp_path)
    own.add_special_tokens({"additional_special_tokens": [token]})
    encoder = Encoder(own, END)
    text = "x" * LONG_HEAD + f"x{END}{END}  y"
    assert encoder.encode(text).tolist() == own.encode(text, add_special_tokens=False)
    assert encoder.heads.misses == 0


def test_truncation_of_the_tokenizer_file_does_not_count(tmp_path: Path) -> None:
    own = build_tokenizer(tmp_path)
    expected = own.encode("hello " * 40, add_special_tokens=False)
    own.backend_tokenizer.enable_truncation(5)
    assert Encoder(own, END).encode("hello " * 40).tolist() == expected
