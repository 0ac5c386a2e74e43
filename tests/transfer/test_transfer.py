"""Pulls between two real processes: the bytes are equal, and every kind of wrong copy is found."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpu_workers.transfer import WeightReader, WeightSource, payload_sha256
from gyre.contracts.engine import WeightsReference
from gyre.contracts.errors import TransferFailed
from tests.transfer.owner import weights


class Owner:
    """A process that exposes weights, driven by commands."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.transfer.owner"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, *command: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def expose(self, version: int) -> WeightsReference:
        return WeightsReference.model_validate(self.ask("expose", version))

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.stop()


@pytest.fixture(scope="module")
def reader() -> WeightReader:
    return WeightReader()


def test_pulled_weights_are_equal_to_the_bit(owner: Owner, reader: WeightReader) -> None:
    pulled = reader.pull(owner.expose(3))
    expected = weights(3)
    assert pulled.version == 3
    assert pulled.sha256 == payload_sha256(expected) == payload_sha256(pulled.tensors)
    assert pulled.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert pulled.tensors[name].dtype == tensor.dtype
        assert torch.equal(pulled.tensors[name], tensor)


def test_two_versions_are_exposed_at_once(owner: Owner, reader: WeightReader) -> None:
    old, new = owner.expose(1), owner.expose(2)
    assert torch.equal(reader.pull(new).tensors["b.weight"], weights(2)["b.weight"])
    assert torch.equal(reader.pull(old).tensors["b.weight"], weights(1)["b.weight"])


def test_every_corrupted_byte_is_found(owner: Owner, reader: WeightReader) -> None:
    reference = owner.expose(1)
    for offset in [0, 8, 20, 60, 90, 100, 110, 400, reference.num_bytes - 17, reference.num_bytes - 1]:
        owner.ask("flip", reference.address + offset)
        with pytest.raises(TransferFailed):
            reader.pull(reference)
        owner.ask("flip", reference.address + offset)
    assert reader.pull(reference).sha256 == reference.sha256


def test_another_version_at_the_address_is_found(owner: Owner, reader: WeightReader) -> None:
    reference = owner.expose(1)
    with pytest.raises(TransferFailed, match="asked for version 2, the copy is stamped 1"):
        reader.pull(reference.model_copy(update={"version": 2}))
    with pytest.raises(TransferFailed, match="sha256"):
        reader.pull(reference.model_copy(update={"sha256": payload_sha256(weights(2))}))


def test_a_released_copy_is_refused_and_its_memory_reused(owner: Owner, reader: WeightReader) -> None:
    first = owner.expose(1)
    owner.ask("release", 1)
    with pytest.raises(TransferFailed, match="released"):
        reader.pull(first)
    second = owner.expose(2)
    assert second.address == first.address
    with pytest.raises(TransferFailed, match="asked for version 1, the copy is stamped 2"):
        reader.pull(first)
    assert reader.pull(second).version == 2


def test_a_copy_released_long_ago_is_refused(owner: Owner, reader: WeightReader) -> None:
    first, _ = owner.expose(1), owner.expose(2)
    owner.ask("release", 1)
    owner.ask("release", 2)
    with pytest.raises(TransferFailed):
        reader.pull(first)


def test_a_silent_peer_is_given_up_after_the_timeout(owner: Owner, reader: WeightReader) -> None:
    reference = owner.expose(1)
    owner.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TransferFailed, match=r"silent for 0\.5 s"):
        reader.pull(reference, timeout_s=0.5)


def test_a_dead_peer_is_an_error(owner: Owner, reader: WeightReader) -> None:
    reference = owner.expose(1)
    owner.stop()
    with pytest.raises(TransferFailed, match="gone or not exposed"):
        reader.pull(reference)


def test_a_version_is_exposed_once() -> None:
    source = WeightSource()
    reference = source.expose(weights(1), 1)
    assert source.expose(weights(1), 1) == reference
    with pytest.raises(TransferFailed, match="other bytes"):
        source.expose(weights(2), 1)
    source.close()


def test_the_checksum_follows_names_not_insertion_order() -> None:
    tensors = weights(1)
    backwards = dict(reversed(tensors.items()))
    assert payload_sha256(tensors) == payload_sha256(backwards)
    swapped = {**tensors, "b.weight": tensors["b.weight"].flip(0)}
    assert payload_sha256(swapped) != payload_sha256(tensors)
