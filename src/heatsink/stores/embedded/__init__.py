"""A private Valkey or Redis in a folder, for deployments on one machine."""

from .process import end, start_tied
from .server import Membership, MissingServer, find_server, free_port, is_made, join

__all__ = [
    "Membership",
    "MissingServer",
    "end",
    "find_server",
    "free_port",
    "is_made",
    "join",
    "start_tied",
]
