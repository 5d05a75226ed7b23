"""Controls: what operators change for tenants and actions while batches run.

An operator pauses a tenant or an action, or gives a tenant another weight. The registry holds these
settings, with who changed them, when and why. Every worker process follows the registry, and tells
the partitions that it owns. A partition keeps the newest controls that it has received. So they
hold whichever process owns the partition, and even while no process can reach the registry.

A partition takes the parts of paused tenants and actions out of its rotation, where they cost
nothing and delay nobody. A claim names the version of the controls that the worker knows. If the
partition has lost these controls, it hands out nothing until it has them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

CONTROL_PAGE = 500  # parts that one call moves


class Controls(msgspec.Struct, frozen=True):
    """The tenants and actions that an operator has paused, and the weights of tenants.

    The registry keeps them. `version` grows with every change in the registry `incarnation`. In a
    process that follows no registry, `version` is 0: partitions ignore such controls.
    """

    incarnation: str = ""
    version: int = 0
    weights: Mapping[str, float] = {}
    """Weights in place of those with which batches were submitted, by tenant."""
    tenants: frozenset[str] = frozenset()
    """Paused tenants."""
    actions: frozenset[str] = frozenset()
    """Paused actions."""

    def pauses(self, tenant: str, action: str) -> bool:
        """Return whether items of this tenant and action must not start."""
        return tenant in self.tenants or action in self.actions

    def replaces(self, other: Controls) -> bool:
        """Return whether a partition with the controls `other` must follow these instead."""
        if not self.version:
            return False
        return self.incarnation != other.incarnation or self.version > other.version


NO_CONTROLS = Controls()


class ControlStore(Protocol):
    """Tells partitions which tenants and actions are paused, and the tenants' weights."""

    async def control(self, partition: int, controls: Controls) -> bool:
        """Make the partition follow these controls, unless it follows newer ones.

        The partition takes parts of paused tenants and actions out of its rotation, and puts parts
        that are no longer paused back. One call moves at most about `CONTROL_PAGE` parts. Returns
        whether another call is needed.
        """
