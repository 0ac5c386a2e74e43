"""Random policies, and trees of calls with the log-probabilities that those policies give."""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from db.models import ModelCallRow, TreeNodeRow

RUN = "audited"
START = datetime(2026, 1, 1, tzinfo=UTC)
VOCABULARY = 96


def make_policies(folder: Path) -> list[Any]:
    """Build three random models of one configuration, and save the configuration in ``folder``."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    policies = []
    for seed in range(3):
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            # Wider than the default initialisation, so that versions differ by far more than rounding.
            torch.nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else None
        policies.append(model)
    return policies


@torch.inference_mode()
def score(policy: Any, ids: list[int], num_output: int, temperature: float) -> np.ndarray:
    """Return the float32 log-probabilities of the last ``num_output`` ids."""
    logits = policy(torch.tensor([ids])).logits[0, :-1]
    scores = torch.log_softmax(logits / temperature, dim=-1)
    picked = scores[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return picked[-num_output:].numpy()


@dataclass
class Tree:
    """The rows of one attempt's tree, as a recorder would write them."""

    attempt: str
    execution: str
    policies: list[Any]
    temperature: float
    draw: np.random.Generator
    nodes: list[TreeNodeRow] = field(default_factory=list)
    calls: list[ModelCallRow] = field(default_factory=list)
    paths: dict[str, list[int]] = field(default_factory=dict)

    def call(
        self, num_context: int, versions: list[list[int]], parent: TreeNodeRow | None, offset: int
    ) -> TreeNodeRow:
        """Add a committed call and return its answer. New context follows ``offset`` tokens of ``parent``."""
        number = len(self.calls) + 1
        name = f"{self.attempt}/call/{number}"
        context = self._node(name, self._random(num_context), parent, offset, kind="context")
        prompt = self.paths[context.id]
        output = self._random(sum(count for _, count in versions))
        sampled = self._node(name, output, context, context.num_tokens, kind="sampled", versions=versions)
        sampled.logprobs = self._logprobs(prompt, output, versions).astype("<f4").tobytes()
        sampled.finish_reason = "stop"
        self.calls.append(
            ModelCallRow(
                id=name,
                attempt_id=self.attempt,
                execution_id=self.execution,
                run_id=RUN,
                index=number,
                status="committed",
                dialect="openai",
                request_key=name,
                requested={},
                sampling={"temperature": self.temperature},
                context_node_id=context.id,
                context_offset=context.num_tokens,
                sampled_node_id=sampled.id,
                num_input_tokens=len(prompt),
                num_output_tokens=len(output),
                finish_reason="stop",
                input_sha256=sha256(np.asarray(prompt, "<i4").tobytes()),
                output_sha256=sha256(sampled.token_ids + sampled.logprobs),
                committed_at=START,
            )
        )
        return sampled

    def _node(
        self, call: str, ids: list[int], parent: TreeNodeRow | None, offset: int, **values: Any
    ) -> TreeNodeRow:
        before = self._prefix(parent, offset)
        index = len(self.nodes)
        node = TreeNodeRow(
            id=f"{self.attempt}/node/{index}",
            attempt_id=self.attempt,
            index=index,
            call_id=call,
            parent_id=parent.id if parent else None,
            parent_offset=offset,
            position=len(before),
            num_tokens=len(ids),
            token_ids=np.asarray(ids, "<i4").tobytes(),
            **values,
        )
        self.paths[node.id] = before + ids
        self.nodes.append(node)
        return node

    def _prefix(self, parent: TreeNodeRow | None, offset: int) -> list[int]:
        return self.paths[parent.id][: parent.position + offset] if parent else []

    def _random(self, count: int) -> list[int]:
        return self.draw.integers(0, VOCABULARY, count).tolist()

    def _logprobs(self, prompt: list[int], output: list[int], versions: list[list[int]]) -> np.ndarray:
        scored = {
            v: score(self.policies[v], prompt + output, len(output), self.temperature or 1.0)
            for v, _ in versions
        }
        owners = [v for v, count in versions for _ in range(count)]
        return np.asarray([scored[owner][place] for place, owner in enumerate(owners)])


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
