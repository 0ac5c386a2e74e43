"""Sources that expose immutable, version-stamped copies of weights; readers that pull and verify them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gpu_workers.transfer import region
from gpu_workers.transfer.endpoint import Endpoint
from gyre.contracts.engine import WeightsReference
from gyre.contracts.errors import TransferFailed

READ_TIMEOUT_S = 25.0
"""Less than Mooncake's own 30 s, so that the failure is reported by our own error."""


@dataclass(frozen=True)
class PulledWeights:
    """Verified weights. ``num_bytes`` were transferred; ``tensors`` (Hugging Face names) share one buffer."""

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

    A released copy's memory stays registered until the next release and is reused for a copy of the same
    size. Mooncake may still be sending from it: if it were freed, this process would read unmapped memory.
    """

    def __init__(self, host: str = "127.0.0.1", protocol: str = "tcp") -> None:
        self._endpoint = Endpoint(host, protocol)
        self._exposed = dict[int, _Exposed]()
        self._spare: torch.Tensor | None = None

    def expose(self, tensors: Mapping[str, torch.Tensor], version: int) -> WeightsReference:
        """Copy the tensors into a region that peers may read until ``release(version)``.

        Exposing a version again returns the same reference, or raises TransferFailed if its bytes differ.
        """
        stamp, table = region.describe(tensors, version)
        if known := self._exposed.get(version):
            if known.reference.sha256 != stamp.sha256:
                raise TransferFailed(f"version {version} is already exposed with other bytes")
            return known.reference
        memory = self._allocate(stamp.num_bytes)
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
        """Invalidate the copy for present and future readers. Unknown versions count as released."""
        exposed = self._exposed.pop(version, None)
        if exposed is None:
            return
        region.clear(exposed.memory)
        if self._spare is not None:
            self._endpoint.unregister(self._spare)
        self._spare = exposed.memory

    def close(self) -> None:
        """Invalidate every copy and free the memory. The source must not be used afterwards."""
        for version in list(self._exposed):
            self.release(version)
        if self._spare is not None:
            self._endpoint.unregister(self._spare)
            self._spare = None

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        """Return registered memory, the spare region if its size fits."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.numel() == num_bytes:
            return spare
        if spare is not None:
            self._endpoint.unregister(spare)
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        self._endpoint.register(memory)
        return memory


class WeightReader:
    """Pulls exposed copies, one at a time."""

    def __init__(self, host: str = "127.0.0.1", protocol: str = "tcp") -> None:
        self._endpoint = Endpoint(host, protocol)

    def pull(self, reference: WeightsReference, timeout_s: float = READ_TIMEOUT_S) -> PulledWeights:
        """Read the copy into fresh memory, then verify its stamp and checksum.

        Raises TransferFailed when the peer is gone or silent, the copy was released or superseded, or the
        version or any byte is wrong.
        """
        if reference.num_bytes < region.HEADER.size + region.TRAILER.size:
            raise TransferFailed(f"a copy of {reference.num_bytes} bytes is too small to hold its stamp")
        memory = torch.empty(reference.num_bytes, dtype=torch.uint8)
        self._read(reference, 0, memory, timeout_s)
        tensors = region.unpack(memory, reference.version, reference.sha256)
        # Read both ends again: the copy may have been released while the payload was on its way.
        header = torch.empty(region.HEADER.size, dtype=torch.uint8)
        trailer = torch.empty(region.TRAILER.size, dtype=torch.uint8)
        self._read(reference, 0, header, timeout_s)
        self._read(reference, reference.num_bytes - trailer.numel(), trailer, timeout_s)
        region.read_stamp(header, trailer, reference.version, reference.num_bytes)
        return PulledWeights(reference.version, reference.sha256, memory.numel(), tensors)

    def _read(self, reference: WeightsReference, start: int, memory: torch.Tensor, timeout_s: float) -> None:
        self._endpoint.read(reference.peer, reference.address + start, memory, timeout_s)
