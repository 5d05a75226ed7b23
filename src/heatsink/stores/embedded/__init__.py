"""A server of one's own in a folder, for deployments of one machine."""

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
