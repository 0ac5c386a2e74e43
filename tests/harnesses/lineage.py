"""How the calls of one conversation follow from each other, in recorded ids."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

from db.models import ModelCallRow
from tests.harnesses.conftest import Stage


def check_lineage(stage: Stage, calls: Sequence[ModelCallRow]) -> None:
    """Each call sends what the one before it sent and sampled, by id, then something new."""
    sent = {sha256_of(request.input_ids): request.input_ids for request in stage.engine.requests}
    outputs = {node.id: node.token_ids for node in stage.world.nodes()}
    for before, after in pairwise(calls):
        known = sent[before.input_sha256] + unpacked(outputs[before.sampled_node_id])
        assert sent[after.input_sha256][: len(known)] == known
        assert len(sent[after.input_sha256]) > len(known)
        assert after.num_reused_tokens == len(known)


def sha256_of(ids: list[int]) -> str:
    return hashlib.sha256(b"".join(number.to_bytes(4, "little") for number in ids)).hexdigest()


def unpacked(stored: bytes) -> list[int]:
    """Little-endian 32-bit ids."""
    return [int.from_bytes(stored[at : at + 4], "little") for at in range(0, len(stored), 4)]
