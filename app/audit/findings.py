"""What the audit checks, and the sentences it writes about what it finds."""

CHECKS = (
    "calls_rebuilt",
    "hashes_match",
    "versions_known",
    "logprobs_match",
    "no_mixed_kv",
    "targets_sampled",
    "targets_once",
    "targets_counted",
    "batches_complete",
    "rewards_own",
    "advantages_match",
    "rewards_valid",
    "every_execution_disposed",
    "account_balances",
    "versions_durable",
    "snapshots_durable",
    "gradients_once",
    "contributions_settled",
    "waterlevel_kept",
    "executions_uninterrupted",
    "sampled_tokens_kept",
    "failures_not_scored",
    "payloads_small",
)
MAX_SENTENCES = 20  # a check: a run broken throughout should still give a report that can be read


class Findings:
    """Collects violations by check, in the order they are found."""

    def __init__(self) -> None:
        self._sentences: dict[str, list[str]] = {name: [] for name in CHECKS}

    def require(self, check: str, holds: bool, sentence: str) -> bool:
        """Note ``sentence`` against ``check`` unless it holds; returns ``holds``."""
        if not holds:
            self._sentences[check].append(sentence)
        return holds

    def checks(self) -> dict[str, bool]:
        return {name: not sentences for name, sentences in self._sentences.items()}

    def violations(self) -> list[str]:
        """``<check>: <sentence>``, at most MAX_SENTENCES a check and one that says how many more."""
        lines: list[str] = []
        for check, sentences in self._sentences.items():
            lines += [f"{check}: {sentence}" for sentence in sentences[:MAX_SENTENCES]]
            if len(sentences) > MAX_SENTENCES:
                lines.append(f"{check}: and {len(sentences) - MAX_SENTENCES} more")
        return lines
