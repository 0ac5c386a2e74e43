"""Checks that the calls of a conversation continue each other, in recorded ids."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

from db.models import ModelCallRow
from tests.harnesses.conftest import HarnessAttempt


def check_lineage(attempt: HarnessAttempt, calls: Sequence[ModelCallRow]) -> None:
    """Check that each call sends the ids that the one before it sent and sampled, then something new."""
    sent = {sha256_of(request.input_ids): request.input_ids for request in attempt.engine.requests}
    outputs = {node.id: node.token_ids for node in attempt.world.nodes()}
    for before, after in pairwise(calls):
        known = sent[before.input_sha256] + unpacked(outputs[before.sampled_node_id])
        assert sent[after.input_sha256][: len(known)] == known
        assert len(sent[after.input_sha256]) > len(known)
        assert after.num_reused_tokens == len(known)


def sha256_of(ids: list[int]) -> str:
    return hashlib.sha256(b"".join(number.to_bytes(4, "little") for number in ids)).hexdigest()


def unpacked(stored: bytes) -> list[int]:
    """Read little-endian 32-bit ids."""
    return [int.from_bytes(stored[at : at + 4], "little") for at in range(0, len(stored), 4)]
