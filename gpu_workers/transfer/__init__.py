"""Weights from process to process over Mooncake: readers pull, nobody writes into another's memory."""

from gpu_workers.transfer.region import payload_sha256
from gpu_workers.transfer.weights import PulledWeights, WeightReader, WeightSource

__all__ = ["PulledWeights", "WeightReader", "WeightSource", "payload_sha256"]
