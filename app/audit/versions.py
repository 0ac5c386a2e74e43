"""Check that every policy version is durable, and recompute the log-probabilities each one sampled."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.audit.findings import Findings
from app.audit.objects import Bucket
from app.audit.policy import Scorer, payload_sha256, read_weights
from app.audit.rebuild import RebuiltCall
from app.audit.trees import Progress
from db.audit import AuditBlob, AuditVersion, RunRows
from gyre.contracts.lifecycle import BatchStatus, BlobStatus

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MAX_GAP = {"float32": (1e-3, 1e-2), "bfloat16": (3e-2, 0.5)}
"""Limits on (mean, 99.9th percentile) of |recorded - recomputed| per dtype of a run. In fp32 an engine stays
within 4e-4 even with a half-precision KV cache, while KV of an older version gives 4e-3 on average. In
bfloat16 rounding alone gives about 1e-2."""


@dataclass
class LogprobResult:
    """Gaps of all recomputed tokens, and the versions that sampled them."""

    gaps: list[NDArray[np.float64]] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)

    @property
    def num_tokens(self) -> int:
        return sum(len(part) for part in self.gaps)

    def summary(self) -> tuple[float | None, float | None]:
        """Return (mean, 99.9th percentile) of the gaps; (None, None) if no token was recomputed."""
        if not self.num_tokens:
            return None, None
        gaps = np.concatenate(self.gaps)
        # "higher" picks an element: interpolating between infinite gaps would give NaN.
        return float(gaps.mean()), float(np.quantile(gaps, 0.999, method="higher"))


def check_versions(
    rows: RunRows, chosen: list[RebuiltCall], bucket: Bucket, findings: Findings, progress: Progress
) -> LogprobResult:
    """Verify each version's row, object and payload; recompute the tokens of the ``chosen`` calls."""
    _check_chain(rows, findings)
    model: dict[str, Any] = rows.config["model"]
    scorer = Scorer(model["path"]) if chosen else None
    blobs = {blob.key: blob for blob in rows.blobs}
    result = LogprobResult()
    with tempfile.TemporaryDirectory(prefix="gyre-audit-") as folder:
        for done, row in enumerate(rows.versions):
            progress("versions", done, len(rows.versions))
            path = Path(folder) / "model.safetensors"
            tensors = _verified_weights(row, blobs.get(row.weights_key), path, model, bucket, findings)
            path.unlink(missing_ok=True)  # one version's weights on disk at a time
            calls = [call for call in chosen if any(v == row.version for v, _ in call.versions)]
            if tensors is not None and scorer is not None and calls:
                _score(scorer, row.version, tensors, calls, result, findings)
    progress("versions", len(rows.versions), len(rows.versions))
    _judge(result, model["dtype"], findings)
    return result


def check_snapshots(rows: RunRows, bucket: Bucket, findings: Findings) -> None:
    """Check that every snapshot and optimizer state named by a row is confirmed and in S3."""
    weights = {row.weights_key for row in rows.versions}
    for blob in rows.blobs:
        if blob.key not in weights:
            check = "versions_durable" if "/checkpoint/" in blob.owner else "snapshots_durable"
            _check_blob(blob, bucket.num_bytes(blob.key), check, findings)


def _check_chain(rows: RunRows, findings: Findings) -> None:
    """Check that versions are 0, 1, 2, …, and that those after 0 pair up with the trained batches."""
    numbers = [row.version for row in rows.versions]
    findings.require(
        "versions_durable",
        numbers == list(range(len(numbers))),
        f"versions are {numbers}, not 0 to {len(numbers) - 1}",
    )
    trained = {b.id: b.version for b in rows.batches if b.status == BatchStatus.TRAINED}
    for row in rows.versions:
        source = trained.get(row.batch_id or "", 0 if row.batch_id is None else None)
        sentence = f"version {row.version} names {row.batch_id} as its batch, which did not make it"
        findings.require("versions_durable", source == row.version, sentence)
    missing = sorted(set(trained) - {row.batch_id or "" for row in rows.versions})
    findings.require("versions_durable", not missing, f"trained batches without a version: {missing}")


def _verified_weights(
    row: AuditVersion,
    blob: AuditBlob | None,
    path: Path,
    model: dict[str, Any],
    bucket: Bucket,
    findings: Findings,
) -> dict[str, torch.Tensor] | None:
    """Return the version's tensors if its object holds what the rows record, else None."""
    name = f"version {row.version}"
    same = row.sha256 == row.checkpoint_sha256 and row.version == row.checkpoint_version
    findings.require("versions_durable", same, f"{name} and its checkpoint disagree")
    if blob is None:
        findings.require("versions_durable", False, f"no row vouches for the weights of {name}")
        return None
    digest = bucket.download(row.weights_key, path)
    found = path.stat().st_size if digest else None
    if not _check_blob(blob, found, "versions_durable", findings):
        return None
    sentence = f"{blob.owner}: {blob.key} does not have the bytes its row names"
    if not findings.require("versions_durable", digest == blob.sha256, sentence):
        return None
    tensors = read_weights(path)
    if tensors is None:
        findings.require("versions_durable", False, f"{blob.owner} is not a safetensors file")
        return None
    payload = payload_sha256(tensors, DTYPES[model["dtype"]])
    sentence = f"the weights of {name} have sha256 {payload}, but its row records {row.sha256}"
    return tensors if findings.require("versions_durable", payload == row.sha256, sentence) else None


def _check_blob(blob: AuditBlob, num_bytes: int | None, check: str, findings: Findings) -> bool:
    """Check that the object is confirmed and has its recorded size; ``num_bytes`` None: it is missing."""
    # "&" evaluates every check, so that each violation is reported; "and" would stop at the first.
    confirmed = blob.status == BlobStatus.CONFIRMED
    held = findings.require(check, confirmed, f"{blob.owner}: {blob.key} is {blob.status}")
    sentence = f"{blob.owner}: {blob.key} is not in S3"
    held &= findings.require(check, num_bytes is not None, sentence)
    sentence = f"{blob.owner}: {blob.key} has {num_bytes} bytes in S3, not {blob.num_bytes}"
    return held & findings.require(check, num_bytes in (None, blob.num_bytes), sentence)


def _score(
    scorer: Scorer,
    version: int,
    tensors: dict[str, torch.Tensor],
    calls: list[RebuiltCall],
    result: LogprobResult,
    findings: Findings,
) -> None:
    problem = scorer.load(tensors)
    if problem is not None:
        findings.require("versions_durable", False, f"version {version}: {problem}")
        return
    gaps = scorer.gaps(version, calls)
    if len(gaps):
        result.gaps.append(gaps)
        result.versions.add(version)


def _judge(result: LogprobResult, dtype: str, findings: Findings) -> None:
    for name, value, limit in zip(
        ("mean", "99.9th percentile"), result.summary(), MAX_GAP[dtype], strict=True
    ):
        sentence = f"the {name} of |recorded - recomputed| is {value}, but at most {limit} is allowed"
        # A NaN gap must fail: `not value > limit` would let it pass.
        findings.require("logprobs_match", value is None or value <= limit, sentence)
