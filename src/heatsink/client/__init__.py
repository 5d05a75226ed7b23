"""The client: `connect` for asyncio, `connect_sync` for threads.

The client for threads is imported when it is used for the first time.
"""

from typing import TYPE_CHECKING

from .connect import connect
from .heatsink import Heatsink
from .settings import Settings

if TYPE_CHECKING:
    from .blocking import BlockingHeatsink, connect_sync

__all__ = ["BlockingHeatsink", "Heatsink", "Settings", "connect", "connect_sync"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in ("BlockingHeatsink", "connect_sync"):
            raise AttributeError(f"module 'heatsink.client' has no attribute {name!r}")
        from . import blocking

        return getattr(blocking, name)
