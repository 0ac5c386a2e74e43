"""Warm-up: a minute of supervised learning on demonstrations, with a loss on the assistant's tokens only."""

import math
import random
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from app.demo.demonstrations import CAREFUL, CARELESS, DemonstratedConversation, Habits, conversations
from app.demo.tasks import ROTA, Task, other_words
from app.demo.tokenizer import END_OF_TEXT, IM_END, IM_START, encode, render, token_id

IGNORED = -100
"""Label of a token that is not a target, by torch's convention."""


@dataclass(frozen=True, kw_only=True)
class WarmupPlan:
    """Steps and learning rate. The defaults take about a minute of CPU time."""

    careful_steps: int = 220
    careless_steps: int = 110
    batch: int = 32
    peak_lr: float = 2e-3
    """At 3e-3, some seeds learn nothing in the first hundred steps."""
    rise_steps: int = 30
    """Steps in which the learning rate rises linearly; then it falls along a cosine to a tenth."""

    @property
    def steps(self) -> int:
        return self.careful_steps + self.careless_steps


def encode_conversation(
    tokenizer: PreTrainedTokenizerFast, given: DemonstratedConversation
) -> tuple[list[int], list[bool]]:
    """Return the token ids of a rendered conversation and whether the policy would have sampled each.

    The text is split where the policy begins and where it stops, and the pieces are encoded separately, as
    in a live run.
    """
    text = render(tokenizer, given.messages, given.tools)
    ids: list[int] = []
    sampled: list[bool] = []
    mark = f"{IM_START}assistant\n"
    context, *answers = text.split(mark)
    pieces = [(context + mark if answers else context, False)]
    for index, turn in enumerate(answers):
        answer, _, after = turn.partition(IM_END)
        pieces.append((answer + IM_END, True))
        pieces.append((after + (mark if index + 1 < len(answers) else ""), False))
    for piece, is_sampled in pieces:
        part = encode(tokenizer, piece)
        ids += part
        sampled += [is_sampled] * len(part)
    return ids, sampled


def learning_rate(plan: WarmupPlan, step: int) -> float:
    """Return the learning rate of a step; steps count from 0."""
    if step < plan.rise_steps:
        return plan.peak_lr * (step + 1) / plan.rise_steps
    done = (step - plan.rise_steps) / max(1, plan.steps - plan.rise_steps)
    return plan.peak_lr * (0.55 + 0.45 * math.cos(math.pi * done))


def warm_up(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    excluded: Set[str],
    plan: WarmupPlan = WarmupPlan(),
    progress: Callable[[int, int, float], None] | None = None,
) -> float:
    """Train the model in place on words outside ``excluded``; return the last loss in nats per token.

    ``progress`` is called after each step with (steps done, all steps, loss).
    """
    rng = random.Random(f"gyre-demo-warmup-{seed}")
    words = other_words(rng, excluded)
    careful, careless = (demonstrated(rng, words, habits) for habits in (CAREFUL, CARELESS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    loss = math.inf
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, step)
        shown = careful if step < plan.careful_steps else careless
        batch = [encode_conversation(tokenizer, each) for each in islice(shown, plan.batch)]
        loss = _step(model, optimizer, *_pad(batch, token_id(tokenizer, END_OF_TEXT)))
        if progress:
            progress(step + 1, plan.steps, loss)
    model.eval()
    return loss


def demonstrated(
    rng: random.Random, words: Iterator[str], habits: Habits
) -> Iterator[DemonstratedConversation]:
    """Yield the conversations of demonstrations, forever, with kinds in turn as in a split."""
    for kind, word in zip(cycle(ROTA), words, strict=False):
        yield from conversations(rng, Task(kind=kind, word=word), habits)


def _pad(traces: list[tuple[list[int], list[bool]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids_BS, labels_BS), padded on the right, where causal attention does not reach."""
    longest = max(len(ids) for ids, _ in traces)
    ids_BS = torch.full((len(traces), longest), pad)
    labels_BS = torch.full((len(traces), longest), IGNORED)
    for row, (ids, sampled) in enumerate(traces):
        ids_BS[row, : len(ids)] = torch.tensor(ids)
        labels_BS[row, : len(ids)] = torch.tensor(
            [token if mine else IGNORED for token, mine in zip(ids, sampled, strict=True)]
        )
    return ids_BS, labels_BS


def _step(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, ids_BS: torch.Tensor, labels_BS: torch.Tensor
) -> float:
    logits_BSV = model(input_ids=ids_BS, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits_BSV[:, :-1].flatten(0, 1), labels_BS[:, 1:].flatten(), ignore_index=IGNORED
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())
