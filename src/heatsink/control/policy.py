"""What a control loop asks of a policy."""

from __future__ import annotations

from typing import Protocol, TypeVar

from heatsink.registry.decision import Decision

Observation_contra = TypeVar("Observation_contra", contravariant=True)


class Policy(Protocol[Observation_contra]):
    """Deterministic: the same observations in the same order give the same decisions.

    Time comes in with the observation; a policy has no clock, does no I/O and takes no chances.
    """

    def decide(self, observation: Observation_contra) -> list[Decision]: ...
