"""Cached heads give the same ids as the whole text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gateway.encoding import LONG_HEAD, LONGEST_KEPT, WORDS, Encoder
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
    assert encoder.encode(text).tolist() == whole, "with the head from the cache"


def test_a_head_is_encoded_once(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer, END)
    head = "tool " * LONG_HEAD + END
    for rest in ("one", "two", "three"):
        encoder.encode(head + rest)
    assert (encoder.pieces.misses, encoder.pieces.hits) == (1, 2)


def test_very_long_pieces_are_not_cached(tokenizer: PreTrainedTokenizerFast) -> None:
    """A tool may return megabytes, different ones each time."""
    encoder = Encoder(tokenizer, END)
    text = "result " * LONGEST_KEPT + END + "x"
    assert encoder.encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False)
    assert encoder.pieces.currsize == 0


@pytest.fixture(scope="module", params=sorted(WORDS))
def by_words(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose merges could cross any line end, if its words allowed it."""
    own = build_tokenizer(tmp_path_factory.mktemp("by_words"))
    core = own.backend_tokenizer
    split = pre_tokenizers.Split(Regex(request.param), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    core.normalizer = normalizers.NFC()
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in "ĊčĠ{}1a.'" for b in "ĊčĠ{}1a.'"]
    vocabulary = {symbol: number for number, symbol in enumerate([*symbols, *(a + b for a, b in pairs)])}
    core.model = models.BPE(vocab=vocabulary, merges=pairs)
    return own


lines = st.text(alphabet="\n\r\t {}1a.'é\u0301\u00a0", max_size=30)


@given(text=st.lists(lines, max_size=8).map("\n".join))
def test_encoding_lines_separately_changes_no_id(by_words: PreTrainedTokenizerFast, text: str) -> None:
    """It holds for any text around a line end, and for any line that is long enough to be cached alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gateway.encoding.LONG_LINE", 3)
        patched.setattr("gateway.encoding.LONG_HEAD", 1)
        encoder = Encoder(by_words, END)
        assert encoder.encode(text + END + text).tolist() == by_words.encode(text + END + text)
    assert text.count("\n{") == 0 or encoder.pieces.misses > 1


def test_tools_are_encoded_once_for_all_tasks(by_words: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(by_words, END)
    tools = "\n".join("{" + "a" * 500 + str(number) + "}" for number in range(20))
    for task in ("one", "another"):
        text = f"{task}\n# Tools\n{tools}\n{END}do {task}"
        assert encoder.encode(text).tolist() == by_words.encode(text)
    # The tools, the rest of each head, and the end of the turn, which is a piece of its own.
    assert (encoder.pieces.misses, encoder.pieces.hits) == (20 + 2 + 1, 20 + 1)


def test_tools_that_contain_the_end_of_a_turn_are_encoded_once(by_words: PreTrainedTokenizerFast) -> None:
    """So is the task, which the executions of a group share."""
    encoder = Encoder(by_words, END)
    tools = "\n".join("{" + "a" * 5_000 + f"{END}{number}" + "}" for number in range(3))
    for execution in range(3):
        text = f"# Tools\n{tools}\n{END}\ndo it{END}\nas {execution}"
        assert encoder.encode(text).tolist() == by_words.encode(text)
    assert encoder.pieces.hits == 2 * encoder.pieces.misses


def test_no_line_is_cut_where_words_may_cross_line_ends(tokenizer: PreTrainedTokenizerFast) -> None:
    """In GPT-2's words, only the last of several line ends is separate, and only if text follows."""
    encoder = Encoder(tokenizer, END)
    text = "a" * 5_000 + "\n\n{" + "b" * 5_000 + "\n\n{" + END + "x"
    assert encoder.encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False)
    assert encoder.pieces.misses == 1


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
def test_tokenizers_that_do_not_cut_there_encode_the_whole_text(tmp_path: Path, token: AddedToken) -> None:
    own = build_tokenizer(tmp_path)
    own.add_special_tokens({"additional_special_tokens": [token]})
    encoder = Encoder(own, END)
    text = "x" * LONG_HEAD + f"x{END}{END}  y"
    assert encoder.encode(text).tolist() == own.encode(text, add_special_tokens=False)
    assert encoder.pieces.misses == 0


def test_truncation_settings_of_the_tokenizer_file_are_ignored(tmp_path: Path) -> None:
    own = build_tokenizer(tmp_path)
    expected = own.encode("hello " * 40, add_special_tokens=False)
    own.backend_tokenizer.enable_truncation(5)
    assert Encoder(own, END).encode("hello " * 40).tolist() == expected
