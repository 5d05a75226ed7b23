"""What an application connects with."""

from .blocking import BlockingHeatsink, connect_sync
from .connect import connect
from .heatsink import Heatsink
from .settings import Settings

__all__ = ["BlockingHeatsink", "Heatsink", "Settings", "connect", "connect_sync"]
