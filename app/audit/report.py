"""The audit's report: a stable JSON document, and a table for people."""

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

MAX_PAYLOAD_BYTES = 16 << 10
"""Limit per Temporal payload: workflows exchange ids, never tokens."""


class AuditReport(BaseModel):
    """The numbers and checks of an audit. The run is clean when ``violations`` is empty."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    calls: int
    """Committed model calls."""
    coverage: float
    """Share of the committed calls that were rebuilt from the tree and compared with their hashes."""
    hash_mismatches: int
    """Calls whose ids, log-probabilities, context or counts differ from what they recorded."""
    tokens: int
    """Sampled tokens whose log-probability was recomputed."""
    versions: int
    """Policy versions that sampled those tokens."""
    logprob_gap_mean: float | None
    logprob_gap_p999: float | None
    """Mean and 99.9th percentile of |recorded - recomputed|; None if no token was recomputed."""
    mixed_kv_tokens: int
    """Tokens of all calls that were sampled over KV of an older version; they are left out of the gap."""
    targets_not_sampled: int
    targets_repeated: int
    """Both targets_… numbers count tokens."""
    gradients_missing: int
    gradients_duplicated: int
    """Both gradients_… numbers count trajectories."""
    waterlevel_violations: int
    executions_interrupted: int
    sampled_tokens_discarded: int
    harness_errors: int
    """Attempts that infrastructure ended. None of them may be scored."""
    largest_payload_bytes: int | None
    """Largest payload in all Temporal histories of the run; None if Temporal could not be read."""
    checks: dict[str, bool]
    violations: list[str]

    @property
    def clean(self) -> bool:
        """Whether the audit found no violation."""
        return not self.violations


class ReportLine(NamedTuple):
    """A line of the table: a number of the report, its allowed value, and the checks that judge it."""

    name: str
    allowed: str
    checks: tuple[str, ...]


LINES = (
    ReportLine("calls", "", ()),
    ReportLine("coverage", "1", ("calls_rebuilt",)),
    ReportLine("hash_mismatches", "0", ("hashes_match",)),
    ReportLine("tokens", "", ()),
    ReportLine("versions", "", ("versions_known",)),
    ReportLine("logprob_gap_mean", "1e-3 (bfloat16: 3e-2)", ("logprobs_match",)),
    ReportLine("logprob_gap_p999", "1e-2 (bfloat16: 0.5)", ("logprobs_match",)),
    ReportLine("mixed_kv_tokens", "0 unless in_place", ("no_mixed_kv",)),
    ReportLine("targets_not_sampled", "0", ("targets_sampled",)),
    ReportLine("targets_repeated", "0", ("targets_once",)),
    ReportLine("gradients_missing", "0", ("gradients_once",)),
    ReportLine("gradients_duplicated", "0", ("gradients_once",)),
    ReportLine("waterlevel_violations", "0", ("waterlevel_kept",)),
    ReportLine("executions_interrupted", "0", ("executions_uninterrupted",)),
    ReportLine("sampled_tokens_discarded", "0", ("sampled_tokens_kept",)),
    ReportLine("harness_errors", "none scored", ("failures_not_scored",)),
    ReportLine("largest_payload_bytes", f"{MAX_PAYLOAD_BYTES}", ("payloads_small",)),
)


def render(report: AuditReport) -> RenderableType:
    """Lay out the numbers, then the checks that have no number, then the violations."""
    table = Table("name", "value", "allowed", "ok", title=f"audit of {report.run}", title_justify="left")
    for line in LINES:
        value = getattr(report, line.name)
        holds = all(report.checks[check] for check in line.checks)
        shown = "not read" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
        table.add_row(line.name, shown, line.allowed, _mark(holds) if line.checks else "")
    numbered = {check for line in LINES for check in line.checks}
    for check, holds in report.checks.items():
        if check not in numbered:
            table.add_row(check, "", "", _mark(holds))
    return Group(table, *(Text(violation, "red") for violation in report.violations))


def _mark(holds: bool) -> Text:
    return Text("yes", "green") if holds else Text("no", "red")
