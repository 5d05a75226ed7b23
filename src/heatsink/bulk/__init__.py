"""Bulk actions: millions of items on partitioned queues, fair, rate-limited and crash-safe."""

from .actions import Actions, Context, Fail, RateLimited, Retry
from .batch import Batch, Failure, Next, Progress, Rate, Result
from .bulk import Bulk
from .limits import Limit
from .settings import BulkSettings

__all__ = [
    "Actions",
    "Batch",
    "Bulk",
    "BulkSettings",
    "Context",
    "Fail",
    "Failure",
    "Limit",
    "Next",
    "Progress",
    "Rate",
    "RateLimited",
    "Result",
    "Retry",
]
