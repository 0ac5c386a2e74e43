"""Token ids and log-probabilities as arrays, packed bytes and hashes: int32 / float32 little-endian."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]


def as_ids(values: Sequence[int] | NDArray[np.int32]) -> Ids:
    """Return ids as an array of shape (n,). Raises OverflowError for an id outside int32."""
    return np.asarray(values, dtype="<i4")


def as_logprobs(values: Sequence[float]) -> Logprobs:
    """Return log-probabilities of shape (n,), rounded to float32, in which they are stored and hashed."""
    return np.asarray(values, dtype="<f4")


def unpack_ids(data: bytes) -> Ids:
    return np.frombuffer(data, dtype="<i4")


def unpack_logprobs(data: bytes) -> Logprobs:
    return np.frombuffer(data, dtype="<f4")


def output_sha256(ids: Ids, logprobs: Logprobs) -> str:
    """Return ``model_call.output_sha256``: the hash of all ids followed by all log-probabilities."""
    return hashlib.sha256(ids.tobytes() + logprobs.tobytes()).hexdigest()


def common_prefix(a: Ids, b: Ids) -> int:
    """Return the number of leading tokens that two sequences share."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
