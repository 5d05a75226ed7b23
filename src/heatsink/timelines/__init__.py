"""Timelines: posts of authors with few followers are pushed to homes, other posts are pulled."""

from .policy import TimelineSettings
from .timelines import HomePage, Post, Timelines

__all__ = ["HomePage", "Post", "TimelineSettings", "Timelines"]
