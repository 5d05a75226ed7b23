"""The client: `connect` for asyncio, `connect_sync` for threads."""

from .blocking import BlockingHeatsink, connect_sync
from .connect import connect
from .heatsink import Heatsink
from .settings import Settings

__all__ = ["BlockingHeatsink", "Heatsink", "Settings", "connect", "connect_sync"]
