"""The whole audit of a run. It reads Postgres, S3 and Temporal and writes nothing."""

from sqlalchemy.orm import Session

from app.audit.account import check_account, check_dispositions, check_failures, count_interruptions
from app.audit.findings import Findings
from app.audit.history import largest_payload_bytes
from app.audit.objects import Bucket
from app.audit.report import MAX_PAYLOAD_BYTES, AuditReport
from app.audit.selection import MAX_TOKENS, choose_calls
from app.audit.training import check_batches, count_gradients
from app.audit.trees import Progress, walk_trees
from app.audit.versions import check_snapshots, check_versions
from app.audit.waterlevel import count_waterlevel
from db import audit as rows_of
from db.audit import RunRows
from db.session import connect, transaction
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId
from gyre.settings.services import Services


def silent(part: str, done: int, total: int) -> None:
    """Ignore progress."""


def audit_run(
    services: Services,
    run_id: str,
    *,
    max_tokens: int = MAX_TOKENS,
    seed: int = 0,
    progress: Progress = silent,
) -> AuditReport:
    """Recount ``run_id`` as of now, even if it is still in progress.

    Raises BadInput if there is no such run or its model cannot be read. Errors of Postgres and S3 pass
    through.
    """
    database = connect(services.postgres_dsn, pool_size=1)
    try:
        with transaction(database) as session:
            rows_of.freeze(session)
            return audit_session(
                session, services, run_id, max_tokens=max_tokens, seed=seed, progress=progress
            )
    finally:
        database.dispose()


def audit_session(
    session: Session,
    services: Services,
    run_id: str,
    *,
    max_tokens: int = MAX_TOKENS,
    seed: int = 0,
    progress: Progress = silent,
) -> AuditReport:
    """Run `audit_run` in the caller's transaction."""
    rows = rows_of.read_run(session, run_id)
    if rows is None:
        raise BadInput(f"no run '{run_id}' in this Postgres")
    findings, bucket = Findings(), Bucket(services)
    chosen = choose_calls(rows.spans, max_tokens, seed)
    trees = walk_trees(session, rows, chosen, findings, progress)
    logprobs = check_versions(rows, trees.chosen, bucket, findings, progress)
    check_snapshots(rows, bucket, findings)
    mixed_kv_tokens = _check_spans(rows, findings)
    for check in (check_dispositions, check_failures, check_account, check_batches):
        check(rows, findings)
    gradients = count_gradients(rows, findings)
    waterlevel = count_waterlevel(rows, findings)
    interruptions = count_interruptions(rows, findings)

    payload = largest_payload_bytes(services, RunId(run_id))
    sentence = f"a payload of {payload} bytes went through Temporal"
    findings.require("payloads_small", (payload or 0) <= MAX_PAYLOAD_BYTES, sentence)
    gap_mean, gap_p999 = logprobs.summary()
    return AuditReport(
        run=run_id,
        calls=trees.num_calls,
        coverage=trees.coverage,
        hash_mismatches=trees.hash_mismatches,
        tokens=logprobs.num_tokens,
        versions=len(logprobs.versions),
        logprob_gap_mean=gap_mean,
        logprob_gap_p999=gap_p999,
        mixed_kv_tokens=mixed_kv_tokens,
        targets_not_sampled=trees.targets.not_sampled,
        targets_repeated=trees.targets.repeated,
        gradients_missing=gradients.missing,
        gradients_duplicated=gradients.duplicated,
        waterlevel_violations=waterlevel,
        executions_interrupted=interruptions.executions,
        sampled_tokens_discarded=interruptions.discarded_tokens,
        harness_errors=interruptions.harness_errors,
        largest_payload_bytes=payload,
        checks=findings.checks(),
        violations=findings.violations(),
    )


def _check_spans(rows: RunRows, findings: Findings) -> int:
    """Check that every span names a version of the run; return the mixed-KV tokens of all calls."""
    known = {row.version for row in rows.versions}
    for span in rows.spans:
        strange = sorted({version for version, _ in span.versions} - known)
        sentence = f"{span.call_id} was sampled by versions without a row: {strange}"
        findings.require("versions_known", not strange, sentence)
    mixed = sum(span.mixed_kv_tokens for span in rows.spans)
    allowed = rows.config["cells"]["publish"] == "in_place"
    sentence = f"{mixed} tokens were sampled over old KV, but the run recomputes KV on publication"
    findings.require("no_mixed_kv", allowed or mixed == 0, sentence)
    return mixed
