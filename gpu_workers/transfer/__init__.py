"""Weights from process to process over Mooncake. Readers pull; nobody writes into another's memory.

endpoint.py   register memory, read with a timeout
region.py     byte format of a published copy
weights.py    expose versions, pull and verify them
"""

from gpu_workers.transfer.region import payload_sha256
from gpu_workers.transfer.weights import PulledWeights, WeightReader, WeightSource

__all__ = ["PulledWeights", "WeightReader", "WeightSource", "payload_sha256"]
