"""Heavy producers, isolated: posts are pushed to few followers and pulled by many."""

from .timelines import HomePage, Post, Timelines, TimelineSettings

__all__ = ["HomePage", "Post", "TimelineSettings", "Timelines"]
