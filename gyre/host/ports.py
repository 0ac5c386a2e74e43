"""Free ports on loopback, kept for good once chosen."""

import random
import socket

from gyre.contracts.errors import BadInput

HOST = "127.0.0.1"
FIRST, LAST = 20000, 32000
"""Below Linux' default range of ephemeral ports, so that no outgoing connection takes one meanwhile."""


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # The servers set it too: a closed connection in TIME_WAIT does not hold a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_port(taken: set[int]) -> int:
    """A free port that is not in ``taken``; the caller remembers it. Raises BadInput if none is found."""
    for _ in range(1000):
        port = random.randint(FIRST, LAST)
        if port not in taken and is_free(port):
            return port
    raise BadInput(f"no free port between {FIRST} and {LAST} on {HOST}")


def require_free(port: int, owner: str) -> None:
    """Raises BadInput when another process listens where ``owner`` was before."""
    if not is_free(port):
        raise BadInput(
            f"port {port} on {HOST}, which {owner} had, is used by another process: "
            "stop that process, then try again"
        )


def accepts(port: int) -> bool:
    """Whether something answers a TCP connection."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False
