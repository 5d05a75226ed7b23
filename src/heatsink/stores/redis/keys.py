"""Every key that Heatsink has in Redis.

The braces are Redis Cluster's hash tag: all keys of one deployment are in one slot. They hold news
and telemetry only, so a few megabytes, and nothing of what users write becomes part of a name.
"""

from __future__ import annotations

import re

import msgspec

from heatsink.errors import InvalidSetting

PREFIX = "heatsink"
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Keys(msgspec.Struct, frozen=True):
    """The names of one deployment; two deployments on one Redis need two prefixes."""

    prefix: str = PREFIX

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidSetting("prefix must be 1 to 64 of A-Z a-z 0-9 _ . : -")

    @property
    def heat(self) -> str:
        """Stream: a `Report` each. Read by the group `GROUP`."""
        return f"{{{self.prefix}}}:hot_partitions"

    @property
    def poison(self) -> str:
        """Stream: entries of `heat` that nobody could read, with the reason. Capped."""
        return f"{{{self.prefix}}}:hot_partitions:poison"

    @property
    def hottest(self) -> str:
        """String: a `FleetHeat`, written by the leader once a window. Expires a moment later."""
        return f"{{{self.prefix}}}:hottest"

    @property
    def pair(self) -> str:
        """String: "closed time|version|incarnation|MAC", always written whole, with one SET."""
        return f"{{{self.prefix}}}:registry:pair"

    def log(self, incarnation: str) -> str:
        """Stream: a signed `LogEntry` each; its id is the version. Expires when no longer fed."""
        return f"{{{self.prefix}}}:registry:log:{incarnation}"

    @property
    def soft(self) -> str:
        """Stream: a `SoftDecision` each. Capped; the leader says it all again now and then."""
        return f"{{{self.prefix}}}:soft"

    @property
    def forgotten(self) -> str:
        """Channel: the keys that one process forgot, for all others."""
        return f"{{{self.prefix}}}:forgotten"


GROUP = "coordinators"
