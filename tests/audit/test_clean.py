"""A consistent run is clean, and the report's numbers are those that the run was built with."""

from tests.audit.conftest import Audited
from tests.audit.small_run import NUM_OUTPUT

NUM_CALLS = 3 * (4 + 3 + 3 + 1 + 1)


def test_a_consistent_run_is_clean(audited: Audited) -> None:
    report = audited.audit()
    assert report.violations == []
    assert report.clean
    assert all(report.checks.values())


def test_every_call_is_compared_and_every_version_recomputed(audited: Audited) -> None:
    report = audited.audit()
    assert report.calls == NUM_CALLS
    assert report.coverage == 1
    assert report.tokens == NUM_CALLS * NUM_OUTPUT >= 2000
    assert report.versions == 3
    assert report.logprob_gap_mean is not None
    assert report.logprob_gap_mean < 1e-5
    assert report.largest_payload_bytes == 0
