"""Ports are chosen once, free, and kept."""

import random
import socket
from collections.abc import Iterator

import pytest

from gyre.contracts.errors import BadInput
from gyre.host.ports import FIRST, HOST, LAST, accepts, choose_port, is_free, require_free


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a listening server."""
    with socket.create_server((HOST, choose_port(set()))) as listening:
        yield listening.getsockname()[1]


def test_a_chosen_port_is_free_and_in_range() -> None:
    port = choose_port(set())
    assert FIRST <= port <= LAST
    assert is_free(port)
    assert not accepts(port)


def test_a_taken_port_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([FIRST, FIRST, FIRST + 1])
    monkeypatch.setattr(random, "randint", lambda first, last: next(draws))
    monkeypatch.setattr("gyre.host.ports.is_free", lambda port: True)
    assert choose_port({FIRST}) == FIRST + 1


def test_a_port_in_use_is_not_chosen(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_free(server)
    assert accepts(server)
    monkeypatch.setattr(random, "randint", lambda first, last: server)
    with pytest.raises(BadInput, match="no free port"):
        choose_port(set())


def test_a_kept_port_must_still_be_free(server: int) -> None:
    with pytest.raises(BadInput, match=f"port {server} .* which the gateway had, is used by another process"):
        require_free(server, "the gateway")
    require_free(choose_port({server}), "the gateway")
