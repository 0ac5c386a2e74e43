"""Mooncake's Transfer Engine behind three calls: register, unregister, and read with a timeout."""

import threading
from collections.abc import Callable

import torch
from mooncake.engine import TransferEngine

from gyre.contracts.errors import TransferFailed

CHUNK_BYTES = 256 << 20
"""Size of one read. Mooncake gives up after 30 s, so a read must be small enough for a slow network."""


class Endpoint:
    """One Mooncake engine, which peers address by ``name``. Memory is a flat uint8 CPU tensor."""

    def __init__(self, host: str = "127.0.0.1", protocol: str = "tcp") -> None:
        self._engine = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, "") != 0:
            raise TransferFailed(f"Mooncake could not be started on {host} over {protocol}")
        self.name = f"{host}:{self._engine.get_rpc_port()}"

    def register(self, memory: torch.Tensor) -> None:
        """Let peers read this memory and, over RDMA, let reads fill it. Raises TransferFailed."""
        if self._engine.register_memory(memory.data_ptr(), memory.numel()) != 0:
            raise TransferFailed(f"Mooncake could not register {memory.numel()} bytes")

    def unregister(self, memory: torch.Tensor) -> None:
        """Undo ``register``."""
        self._engine.unregister_memory(memory.data_ptr())

    def read(self, peer: str, address: int, memory: torch.Tensor, timeout_s: float) -> None:
        """Fill ``memory`` from a peer's address. ``timeout_s`` limits each 256 MiB. Raises TransferFailed."""
        for start in range(0, memory.numel(), CHUNK_BYTES):
            chunk = memory[start : start + CHUNK_BYTES]
            code = _bounded(lambda at=address + start, to=chunk: self._fill(peer, at, to), timeout_s)
            if code is None:
                raise TransferFailed(f"peer {peer} was silent for {timeout_s:g} s")
            if code != 0:
                raise TransferFailed(f"peer {peer} did not send {chunk.numel()} bytes: gone or not exposed")

    def _fill(self, peer: str, address: int, chunk: torch.Tensor) -> int:
        self.register(chunk)
        try:
            return self._engine.transfer_sync_read(peer, chunk.data_ptr(), address, chunk.numel())
        finally:
            self.unregister(chunk)


def _bounded(call: Callable[[], int], timeout_s: float) -> int | None:
    """Run an uninterruptible call in its own thread. Returns None after the timeout.

    An abandoned thread keeps its target memory alive and registered until it ends, since it may still write.
    """
    result, failure = list[int](), list[TransferFailed]()

    def work() -> None:
        try:
            result.append(call())
        except TransferFailed as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failure:
        raise failure[0]
    return result[0] if result else None
