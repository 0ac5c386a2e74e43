"""Rebuild the input and output of model calls from the prefix tree alone."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from db.audit import AuditCall, AuditNode
from gyre.contracts.lifecycle import NodeKind


class Piece(NamedTuple):
    """The first ``taken`` tokens of a node on a path."""

    node: AuditNode
    taken: int

    @property
    def id_bytes(self) -> bytes:
        return self.node.token_ids[: 4 * self.taken]


class RebuiltCall(NamedTuple):
    """A committed call, rebuilt from the tree."""

    call_id: str
    input_ids: NDArray[np.int32]
    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """Recorded log-probabilities, one per output token."""
    versions: list[list[int]]
    """``[[policy_version, num_tokens], ...]``, in order."""
    mixed_kv_tokens: int
    """Number of output tokens, at the end, that were sampled over KV of an older version."""
    temperature: float


def path_to(nodes: Mapping[str, AuditNode], leaf: str, taken: int | None = None) -> list[Piece]:
    """Return the pieces from the root to the first ``taken`` tokens of ``leaf`` (None: all of them).

    Raises ValueError with a sentence if the chain of parents is broken.
    """
    pieces: list[Piece] = []
    name: str | None = leaf
    while name is not None:
        node = nodes.get(name)
        if node is None:
            raise ValueError(f"{name} is not a node of this execution")
        length = node.num_tokens if taken is None else taken
        if not 0 <= length <= node.num_tokens:
            raise ValueError(f"{length} tokens of {name} are on the path, but it has {node.num_tokens}")
        if len(node.token_ids) != 4 * node.num_tokens:
            raise ValueError(f"{name} has {len(node.token_ids)} bytes for {node.num_tokens} token ids")
        if len(pieces) == len(nodes):
            raise ValueError(f"the parents of {leaf} form a circle")
        pieces.append(Piece(node, length))
        # Of an ancestor, only the tokens before the branch are on the path.
        name, taken = node.parent_id, node.parent_offset
    pieces.reverse()
    position = 0
    for piece in pieces:
        if piece.node.attempt_id != pieces[0].node.attempt_id:
            raise ValueError(f"{piece.node.id} continues a node of another attempt")
        if piece.node.position != position:
            raise ValueError(f"{piece.node.id} records position {piece.node.position}, but is at {position}")
        position += piece.taken
    return pieces


def ids_of(pieces: list[Piece]) -> bytes:
    """Return the token ids along a path, int32 little-endian."""
    return b"".join(piece.id_bytes for piece in pieces)


def rebuild(call: AuditCall, nodes: Mapping[str, AuditNode]) -> tuple[RebuiltCall, list[str]]:
    """Rebuild the call, and write a sentence for each way in which it differs from its own record.

    Raises ValueError if the tree does not hold what the call names.
    """
    if call.context_node_id is None or call.context_offset is None or call.sampled_node_id is None:
        raise ValueError("it names no context or no sampled node")
    if call.input_sha256 is None or call.output_sha256 is None:
        raise ValueError("it has no hashes to compare with")
    input_bytes = ids_of(path_to(nodes, call.context_node_id, call.context_offset))
    *before, own = path_to(nodes, call.sampled_node_id)
    sampled = own.node
    if sampled.kind != NodeKind.SAMPLED or sampled.logprobs is None:
        raise ValueError(f"{sampled.id} was not sampled")
    rebuilt = RebuiltCall(
        call_id=call.id,
        input_ids=np.frombuffer(input_bytes, "<i4"),
        output_ids=np.frombuffer(sampled.token_ids, "<i4"),
        logprobs=np.frombuffer(sampled.logprobs, "<f4"),
        versions=sampled.versions or [],
        mixed_kv_tokens=sampled.mixed_kv_tokens,
        temperature=call.temperature or 1.0,  # a greedy call records log-probabilities at temperature 1
    )
    return rebuilt, _differences(call, rebuilt, sampled, ids_of(before))


def _differences(call: AuditCall, rebuilt: RebuiltCall, sampled: AuditNode, before: bytes) -> list[str]:
    """Compare a rebuilt call with its record; ``before`` are the ids that its answer hangs on in the tree."""
    input_bytes = rebuilt.input_ids.tobytes()
    output_bytes = sampled.token_ids + (sampled.logprobs or b"")
    num_input, num_output = len(rebuilt.input_ids), len(rebuilt.output_ids)
    num_versioned = sum(count for _, count in rebuilt.versions)
    found = {
        "its input ids do not have the recorded hash": _sha256(input_bytes) != call.input_sha256,
        "its output does not have the recorded hash": _sha256(output_bytes) != call.output_sha256,
        "its answer hangs on a context other than the one it was sampled in": before != input_bytes,
        "its answer is another call's node": sampled.call_id != call.id,
        f"it counts {call.num_input_tokens} input tokens, but the tree has {num_input}": (
            call.num_input_tokens != num_input
        ),
        f"it counts {call.num_output_tokens} output tokens, but the tree has {num_output}": (
            call.num_output_tokens != num_output
        ),
        "it does not have one log-probability per token": len(rebuilt.logprobs) != num_output,
        f"it names the versions of {num_versioned} of its {num_output} tokens": num_versioned != num_output,
    }
    return [sentence for sentence, wrong in found.items() if wrong]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
