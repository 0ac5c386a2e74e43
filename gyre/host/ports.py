"""Free ports on loopback, kept for good once chosen."""

import random
import socket

from gyre.contracts.errors import BadInput

HOST = "127.0.0.1"
FIRST, LAST = 20000, 32000
"""Below Linux' default range of ephemeral ports, so that no outgoing connection takes one of them."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # The servers set it too: a closed connection in TIME_WAIT does not hold a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_port(taken: set[int]) -> int:
    """Return a free port that is not in ``taken``. It is not reserved. Raises BadInput if none is found."""
    for _ in range(1000):
        port = random.randint(FIRST, LAST)
        if port not in taken and is_free(port):
            return port
    raise BadInput(f"no free port between {FIRST} and {LAST} on {HOST}")


def require_free(port: int, owner: str) -> None:
    """Raise BadInput if another process listens on the port that ``owner`` had before."""
    if not is_free(port):
        raise BadInput(
            f"port {port} on {HOST}, which {owner} had, is used by another process: "
            "stop that process, then try again"
        )


def accepts(port: int) -> bool:
    """Return whether a server accepts TCP connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False
