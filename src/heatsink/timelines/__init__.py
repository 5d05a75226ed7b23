"""Heavy producers, isolated: posts are pushed to few followers and pulled by many."""

from .policy import TimelineSettings
from .timelines import HomePage, Post, Timelines

__all__ = ["HomePage", "Post", "TimelineSettings", "Timelines"]
