"""Ports of this machine for the servers that a benchmark or a test starts."""

import socket


def free_ports(count: int) -> list[int]:
    """So many different ones that nobody listens on."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
