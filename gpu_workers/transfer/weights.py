"""Publication of weights: a source exposes immutable, version-stamped copies; a reader pulls and verifies."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gpu_workers.transfer import region
from gpu_workers.transfer.endpoint import Endpoint
from gyre.contracts.engine import WeightsReference
from gyre.contracts.errors import TransferFailed

READ_TIMEOUT_S = 25.0
"""Under Mooncake's own 30 s, so that the failure and its sentence are ours."""


@dataclass(frozen=True)
class PulledWeights:
    """Verified weights. ``num_bytes`` crossed the wire; ``tensors`` (HF names) share one buffer."""

    version: int
    sha256: str
    num_bytes: int
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Exposed:
    memory: torch.Tensor
    reference: WeightsReference


class WeightSource:
    """Exposes copies of weights to peers. Not thread-safe.

    A released copy's memory stays registered until the next release and is used again for a copy of
    the same size: Mooncake may still be sending from it, and freeing it then would be a read of
    unmapped memory in this process.
    """

    def __init__(self, host: str = "127.0.0.1", protocol: str = "tcp") -> None:
        self._endpoint = Endpoint(host, protocol)
        self._exposed = dict[int, _Exposed]()
        self._spare: torch.Tensor | None = None

    def expose(self, tensors: Mapping[str, torch.Tensor], version: int) -> WeightsReference:
        """Copy the tensors into a region that peers may read until ``release(version)``.

        Exposing a version again returns the same reference; with other bytes it raises TransferFailed.
        """
        stamp, table = region.describe(tensors, version)
        if known := self._exposed.get(version):
            if known.reference.sha256 != stamp.sha256:
                raise TransferFailed(f"version {version} is already exposed with other bytes")
            return known.reference
        memory = self._take(stamp.num_bytes)
        region.write(memory, stamp, table, tensors)
        reference = WeightsReference(
            peer=self._endpoint.name,
            address=memory.data_ptr(),
            num_bytes=stamp.num_bytes,
            version=version,
            sha256=stamp.sha256,
        )
        self._exposed[version] = _Exposed(memory, reference)
        return reference

    def release(self, version: int) -> None:
        """Void the copy for readers that come or are reading. Unknown versions are already released."""
        exposed = self._exposed.pop(version, None)
        if exposed is None:
            return
        region.clear(exposed.memory)
        if self._spare is not None:
            self._endpoint.unregister(self._spare)
        self._spare = exposed.memory

    def close(self) -> None:
        """Void every copy and give the memory back. The source must not be used afterwards."""
        for version in list(self._exposed):
            self.release(version)
        if self._spare is not None:
            self._endpoint.unregister(self._spare)
            self._spare = None

    def _take(self, num_bytes: int) -> torch.Tensor:
        spare, self._spare = self._spare, None
        if spare is not None and spare.numel() == num_bytes:
            return spare
        if spare is not None:
            self._endpoint.unregister(spare)
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        self._endpoint.register(memory)
        return memory


class WeightReader:
    """Pulls exposed copies. One pull at a time."""

    def __init__(self, host: str = "127.0.0.1", protocol: str = "tcp") -> None:
        self._endpoint = Endpoint(host, protocol)

    def pull(self, reference: WeightsReference, timeout_s: float = READ_TIMEOUT_S) -> PulledWeights:
        """Read the copy into fresh memory and verify stamp and checksum after reading.

        Raises TransferFailed: peer gone or silent, copy released or superseded, wrong version, wrong bytes.
        """
        if reference.num_bytes < region.HEADER.size + region.TRAILER.size:
            raise TransferFailed(f"a copy of {reference.num_bytes} bytes has no room for its stamp")
        memory = torch.empty(reference.num_bytes, dtype=torch.uint8)
        self._read(reference, 0, memory, timeout_s)
        tensors = region.unpack(memory, reference.version, reference.sha256)
        self._check_still_exposed(reference, timeout_s)
        return PulledWeights(reference.version, reference.sha256, memory.numel(), tensors)

    def _check_still_exposed(self, reference: WeightsReference, timeout_s: float) -> None:
        header = torch.empty(region.HEADER.size, dtype=torch.uint8)
        trailer = torch.empty(region.TRAILER.size, dtype=torch.uint8)
        self._read(reference, 0, header, timeout_s)
        self._read(reference, reference.num_bytes - trailer.numel(), trailer, timeout_s)
        region.read_stamp(header, trailer, reference.version, reference.num_bytes)

    def _read(self, reference: WeightsReference, start: int, memory: torch.Tensor, timeout_s: float) -> None:
        self._endpoint.read(reference.peer, reference.address + start, memory, timeout_s)
