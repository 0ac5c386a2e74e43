"""Properties of the audit's own formulas and choices, and its independence."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import app.audit
import db.audit
from app.audit.findings import CHECKS, MAX_SENTENCES, Findings
from app.audit.report import LINES, AuditReport
from app.audit.selection import choose_calls
from app.audit.training import advantages
from db.audit import AuditSpan

ALLOWED = (
    "app.audit", "gyre.contracts", "gyre.settings", "app.stack", "db.audit", "db.session",
)  # fmt: skip
ROOMS = (
    "gyre", "app", "db", "gateway", "activities", "workflows", "sandbox", "gpu_workers", "migrations",
    "benchmarks",
)  # fmt: skip

spans = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50)), min_size=1, max_size=3), max_size=40
).map(lambda calls: [AuditSpan(str(i), [list(part) for part in call], 0) for i, call in enumerate(calls)])


def tokens_of(spans: list[AuditSpan], chosen: set[str], version: int) -> int:
    return sum(n for span in spans if span.call_id in chosen for v, n in span.versions if v == version)


@given(spans, st.integers(0, 400), st.integers(0, 3))
def test_each_version_gets_its_share_of_the_recomputed_tokens(
    spans: list[AuditSpan], max_tokens: int, seed: int
) -> None:
    chosen = choose_calls(spans, max_tokens, seed)
    everything = {span.call_id for span in spans}
    versions = {version for span in spans for version, _ in span.versions}
    for version in versions:
        had = tokens_of(spans, everything, version)
        fair = max_tokens // len(versions) - 50  # calls are taken whole, and each has at most 50 tokens
        assert tokens_of(spans, chosen, version) >= min(had, fair)
    assert chosen == choose_calls(spans, max_tokens, seed)


def test_a_version_with_few_tokens_leaves_its_share_to_the_others() -> None:
    spans = [AuditSpan("small", [[0, 10]], 0), *(AuditSpan(f"{i}", [[1, 10]], 0) for i in range(100))]
    chosen = choose_calls(spans, 400, seed=0)
    assert "small" in chosen
    assert tokens_of(spans, chosen, 1) == 390


rewards = st.lists(st.floats(0, 1), min_size=1, max_size=16)


@given(rewards, st.floats(0.1, 10), st.floats(-1, 1))
def test_advantages_are_centred_and_do_not_depend_on_scale(
    values: list[float], scale: float, shift: float
) -> None:
    found = np.asarray(advantages(values))
    assert abs(found.sum()) < 1e-6
    if np.ptp(values) > 1e-3 and len(values) > 1:
        assert found.std() == pytest.approx(1, abs=1e-6)
        moved = advantages([scale * value + shift for value in values])
        assert moved == pytest.approx(list(found), abs=1e-6)


@pytest.mark.parametrize("values", [[], [1.0], [0.5, 0.5], [0.5, 0.5 + 1e-7]])
def test_a_group_without_a_signal_has_no_advantage(values: list[float]) -> None:
    assert advantages(values) == [0.0] * len(values)


def test_many_violations_still_give_a_readable_report() -> None:
    findings = Findings()
    for index in range(100):
        findings.require("advantages_match", False, f"sentence {index}")
    assert len(findings.violations()) == MAX_SENTENCES + 1
    assert findings.violations()[-1] == "advantages_match: and 80 more"


def test_every_table_line_shows_a_number_of_the_report() -> None:
    assert {line.name for line in LINES} <= set(AuditReport.model_fields)
    assert {check for line in LINES for check in line.checks} <= set(CHECKS)


def test_the_audit_shares_no_code_with_what_it_audits() -> None:
    """An import rule cannot say this: of ``db``, the audit may use two modules only."""
    files = [*Path(app.audit.__path__[0]).glob("*.py"), Path(db.audit.__file__)]
    for file in files:
        for name in _imports(file):
            ours = name.split(".")[0] in ROOMS
            assert not ours or name == "db" or name.startswith(ALLOWED), f"{file.name} imports {name}"


def _imports(file: Path) -> list[str]:
    """Return the modules that a file imports, at any depth."""
    names: list[str] = []
    for part in ast.walk(ast.parse(file.read_text())):
        if isinstance(part, ast.Import):
            names += [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom) and part.module == "db":
            names += [f"db.{alias.name}" for alias in part.names]
        elif isinstance(part, ast.ImportFrom):
            names.append(part.module or "")
    return names
