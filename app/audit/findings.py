"""The audit's checks, and the violations it finds of each."""

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
"""Names of the checks, in the order of the report; they are keys of its JSON."""
MAX_SENTENCES = 20
"""Limit per check, so that a badly broken run still gives a readable report."""


class Findings:
    """The violations found so far, per check and in the order they were found."""

    def __init__(self) -> None:
        self._sentences: dict[str, list[str]] = {name: [] for name in CHECKS}

    def require(self, check: str, holds: bool, sentence: str) -> bool:
        """Record ``sentence`` as a violation of ``check`` unless it ``holds``; return ``holds``."""
        if not holds:
            self._sentences[check].append(sentence)
        return holds

    def checks(self) -> dict[str, bool]:
        """Return whether each check holds."""
        return {name: not sentences for name, sentences in self._sentences.items()}

    def violations(self) -> list[str]:
        """Return ``<check>: <sentence>`` lines: at most MAX_SENTENCES per check, then how many more."""
        lines: list[str] = []
        for check, sentences in self._sentences.items():
            lines += [f"{check}: {sentence}" for sentence in sentences[:MAX_SENTENCES]]
            if len(sentences) > MAX_SENTENCES:
                lines.append(f"{check}: and {len(sentences) - MAX_SENTENCES} more")
        return lines
