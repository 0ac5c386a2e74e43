"""The warm-up: its targets, its two demonstrators, and that the model learns from them."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from app.demo.demonstrations import (
    CAREFUL,
    CARELESS,
    FAILED_SHARE,
    DemonstratedConversation,
    Habits,
    command,
    conversations,
)
from app.demo.model import VOCABULARY_MULTIPLE, build_model, save_model
from app.demo.recipe import CONTEXT_TOKENS
from app.demo.tasks import GOALS, Kind, Task, random_word, score
from app.demo.tokenizer import END_OF_TEXT, IM_END, encode, render, token_id
from app.demo.warmup import WarmupPlan, encode_conversation, learning_rate, warm_up
from gyre.settings.models import check_model


def files_of(shell_command: str) -> dict[str, str]:
    """Return the files that ``echo A > a; echo B > b`` writes."""
    parts = [part.removeprefix("echo ").split(" > ") for part in shell_command.split("; ")]
    return {name: text for text, name in parts}


def shown(seed: int, kind: Kind, habits: Habits) -> list[DemonstratedConversation]:
    rng = random.Random(seed)
    return conversations(rng, Task(kind=kind, word=random_word(rng)), habits)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(Kind))
def test_targets_are_the_tokens_that_the_policy_samples(
    tokenizer: PreTrainedTokenizerFast, seed: int, kind: Kind
) -> None:
    for each in shown(seed, kind, CARELESS):
        ids, sampled = encode_conversation(tokenizer, each)
        assert ids == encode(tokenizer, render(tokenizer, each.messages, each.tools))
        targets = tokenizer.decode([token for token, mine in zip(ids, sampled, strict=True) if mine])
        call, closing, end = targets.split(IM_END)
        assert call.startswith("<tool_call>")
        assert (closing, end) == (each.messages[-1]["content"], "")


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(Kind))
def test_a_demonstration_has_the_prompt_of_a_live_run(
    tokenizer: PreTrainedTokenizerFast, seed: int, kind: Kind
) -> None:
    for each in shown(seed, kind, CAREFUL):
        ids, sampled = encode_conversation(tokenizer, each)
        prompt = encode(tokenizer, render(tokenizer, each.messages[:1], each.tools, prompt=True))
        assert ids[: len(prompt)] == prompt
        assert sampled[: len(prompt) + 1] == [False] * len(prompt) + [True]


def test_the_careless_demonstrator_leaves_room_to_improve() -> None:
    rng = random.Random(0)
    words = [random_word(rng) for _ in range(2000)]
    careless = sum(score(word, files_of(command(rng, word, CARELESS))) for word in words) / len(words)
    careful = sum(score(word, files_of(command(rng, word, CAREFUL))) for word in words) / len(words)
    assert 0.4 < careless < 0.55
    assert careful > 0.75


def test_the_shares_of_a_habit_sum_to_one() -> None:
    for habits in (CAREFUL, CARELESS):
        assert list(habits) == list(GOALS)
        assert all(abs(h.right + h.unchanged + h.slip - 1) < 1e-9 for h in habits.values())
    assert 0 < FAILED_SHARE < 1


def test_learning_rate_rises_and_falls() -> None:
    plan = WarmupPlan()
    rates = [learning_rate(plan, step) for step in range(plan.steps)]
    assert max(rates) == pytest.approx(plan.peak_lr)
    assert rates[: plan.rise_steps] == sorted(rates[: plan.rise_steps])
    assert rates[-1] == pytest.approx(plan.peak_lr / 10, rel=0.05)


def test_the_warm_up_learns_and_depends_on_the_seed_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    plan = WarmupPlan(careful_steps=12, careless_steps=3, batch=4, rise_steps=3)
    losses: list[list[float]] = []
    weights: list[torch.Tensor] = []
    for _ in range(2):
        model = build_model(tokenizer, seed=5)
        seen: list[float] = []
        warm_up(
            model,
            tokenizer,
            seed=5,
            excluded=set(),
            plan=plan,
            progress=lambda done, total, loss, seen=seen: seen.append(loss),
        )
        losses.append(seen)
        weights.append(model.lm_head.weight.detach().clone())
    assert len(losses[0]) == plan.steps
    assert losses[0][-1] < losses[0][0] - 1.0
    assert losses[0] == losses[1]
    assert torch.equal(weights[0], weights[1])


def test_weights_depend_on_the_seed_and_not_on_the_global_generator(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    torch.manual_seed(11)
    wanted = torch.rand(3)
    torch.manual_seed(11)
    first, same, other = (build_model(tokenizer, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), wanted)
    weight = [model.lm_head.weight for model in (first, same, other)]
    assert torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[0], weight[2])


def test_a_run_accepts_the_saved_model(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model = build_model(tokenizer, seed=0)
    save_model(model, tokenizer, tmp_path)
    check_model(tmp_path, CONTEXT_TOKENS)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size % VOCABULARY_MULTIPLE == 0
    assert loaded.config.vocab_size >= len(AutoTokenizer.from_pretrained(tmp_path))
    assert loaded.generation_config.eos_token_id == token_id(tokenizer, IM_END)
    assert loaded.generation_config.pad_token_id == token_id(tokenizer, END_OF_TEXT)
    ids = torch.tensor([encode(tokenizer, "tamok")])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
