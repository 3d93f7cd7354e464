"""Free ports of this machine for servers that a benchmark or a test starts."""

import socket


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
