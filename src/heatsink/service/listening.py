"""Sockets for what commands serve: made first, so that a taken port is told before all else."""

from __future__ import annotations

import errno
import os
import socket

from heatsink.errors import Misconfigured


def listen(host: str, port: int) -> list[socket.socket]:
    """One for every address that the host stands for."""
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, *_, address in found):
            listeners.append(socket.create_server(address, family=family))
            # asyncio sets it only where a socket says its protocol; connections inherit it here
            listeners[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        for listener in listeners:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Misconfigured(f"port {port} is in use: choose another with --port") from None
        unknown = isinstance(error, socket.gaierror)
        reason = error.strerror if unknown else os.strerror(error.errno or 0)
        raise Misconfigured(
            f"cannot listen on {host!r}, port {port} ({reason}): choose another --host or --port"
        ) from None
    return listeners
