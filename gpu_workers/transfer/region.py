"""The byte format of a published copy: header, table, payload, trailer. Pure; knows no transport.

::

    header   magic, version, sha256(payload), sha256(table), len(table), len(payload)   HEADER
    table    JSON [[name, dtype, shape, offset in the payload], ...], padded to 64 bytes
    payload  the tensors in sorted name order, contiguous, little-endian
    trailer  magic, version                                                             TRAILER

Header and trailer are written last and cleared first, so that ``unpack`` rejects a copy that is being
written, was released or was overwritten.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch

from gyre.contracts.errors import TransferFailed
from gyre.contracts.json_text import compact_json

HEADER = struct.Struct("<8sq32s32sQQ")
TRAILER = struct.Struct("<8sq")
MAGIC, END_MAGIC = b"GYREWTS1", b"GYREEND1"
ALIGNMENT = 64
"""A payload that starts on a cache line can be viewed in any dtype."""
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Stamp:
    """Contents of the header: version, digests and sizes."""

    version: int
    sha256: str
    table_sha256: bytes
    table_bytes: int
    payload_bytes: int

    @property
    def num_bytes(self) -> int:
        return HEADER.size + self.table_bytes + self.payload_bytes + TRAILER.size


def sorted_bytes(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor's bytes as a flat uint8 CPU tensor, in sorted name order."""
    for name in sorted(tensors):
        yield name, tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def payload_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of the tensors' little-endian bytes in sorted name order, without the names."""
    digest = hashlib.sha256()
    for _, flat in sorted_bytes(tensors):
        digest.update(flat.numpy().data)
    return digest.hexdigest()


def describe(tensors: Mapping[str, torch.Tensor], version: int) -> tuple[Stamp, bytes]:
    """Return the stamp and the table of a copy, before memory is allocated for it."""
    entries, offset = list[list[object]](), 0
    for name in sorted(tensors):
        tensor = tensors[name]
        entries.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset])
        offset += tensor.numel() * tensor.element_size()
    table = compact_json(entries)
    table += b" " * (-(HEADER.size + len(table)) % ALIGNMENT)
    digest = hashlib.sha256(table).digest()
    return Stamp(version, payload_sha256(tensors), digest, len(table), offset), table


def write(region: torch.Tensor, stamp: Stamp, table: bytes, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill a region of exactly ``stamp.num_bytes`` bytes, header and trailer last."""
    clear(region)
    start = HEADER.size
    region[start : start + len(table)] = _bytes(table)
    start += len(table)
    for _, flat in sorted_bytes(tensors):
        region[start : start + flat.numel()] = flat
        start += flat.numel()
    region[start:] = _bytes(TRAILER.pack(END_MAGIC, stamp.version))
    sha256 = bytes.fromhex(stamp.sha256)
    header = (stamp.version, sha256, stamp.table_sha256, stamp.table_bytes, stamp.payload_bytes)
    region[: HEADER.size] = _bytes(HEADER.pack(MAGIC, *header))


def clear(region: torch.Tensor) -> None:
    """Invalidate the copy, also for readers that are in the middle of it."""
    region[-TRAILER.size :] = 0
    region[: HEADER.size] = 0


def read_stamp(header: torch.Tensor, trailer: torch.Tensor, version: int, num_bytes: int) -> Stamp:
    """Return the stamp after checking both ends of a copy against its reference. Raises TransferFailed."""
    magic, stamped, sha256, table_sha256, table_bytes, payload_bytes = HEADER.unpack(header.numpy().data)
    end_magic, end_version = TRAILER.unpack(trailer.numpy().data)
    if magic != MAGIC or end_magic != END_MAGIC:
        raise TransferFailed(f"the copy of version {version} was released or does not exist")
    if (stamped, end_version) != (version, version):
        raise TransferFailed(f"asked for version {version}, the copy is stamped {stamped}/{end_version}")
    stamp = Stamp(stamped, sha256.hex(), table_sha256, table_bytes, payload_bytes)
    if stamp.num_bytes != num_bytes:
        raise TransferFailed(f"version {version}: the header says {stamp.num_bytes} bytes, not {num_bytes}")
    return stamp


def unpack(region: torch.Tensor, version: int, sha256: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a pulled copy as views of it. Raises TransferFailed if any byte is wrong."""
    ends = region[: HEADER.size], region[-TRAILER.size :]
    stamp = read_stamp(*ends, version, region.numel())
    start = HEADER.size + stamp.table_bytes
    table, payload = region[HEADER.size : start], region[start : -TRAILER.size]
    found = hashlib.sha256(payload.numpy().data).hexdigest()
    if found != sha256 or stamp.sha256 != sha256:
        raise TransferFailed(f"version {version}: payload has sha256 {found}, not {sha256}")
    if hashlib.sha256(table.numpy().data).digest() != stamp.table_sha256:
        raise TransferFailed(f"version {version}: the table of tensors was corrupted in transit")
    entries = json.loads(table.numpy().tobytes())
    return {name: _tensor(payload, dtype, shape, offset) for name, dtype, shape, offset in entries}


def _tensor(payload: torch.Tensor, dtype: str, shape: list[int], offset: int) -> torch.Tensor:
    kind = DTYPES[dtype]
    flat = payload[offset : offset + prod(shape) * kind.itemsize]
    if flat.storage_offset() % kind.itemsize:
        flat = flat.clone()  # Needed with mixed dtypes only: a view must start at a multiple of its size.
    return flat.view(kind).reshape(shape)


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
