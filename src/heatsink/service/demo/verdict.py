"""How a run ended, and what to make of it."""

from __future__ import annotations

import msgspec

from .lane import ReadBack

THROTTLED_SHARE_MAX = 0.01
RECOVERY_S_MAX = 3.0


class Recovery(msgspec.Struct, frozen=True):
    """Seconds after the jump until no new write was refused, and until none was waiting."""

    spread_s: float
    drained_s: float


class Finding(msgspec.Struct, frozen=True):
    """Good, bad, or (None) neither: a number that nothing is promised about."""

    good: bool | None
    text: str


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    plain: ReadBack
    heatsink: ReadBack
    throttled_share: float
    recovery: Recovery | None
    findings: list[Finding]

    @property
    def kept_everything(self) -> bool:
        return _kept_everything(self.heatsink)


def reach_verdict(plain: ReadBack, heatsink: ReadBack, recovery: Recovery | None) -> Verdict:
    """`throttled_share` is Heatsink's refusals as a share of the plain store's."""
    share = heatsink.totals.throttled / max(plain.totals.throttled, 1)
    findings = [_kept(heatsink), _refused(plain, heatsink, share, recovery)]
    if recovery is not None:
        findings += _recovered(recovery)
    findings.append(_gone(plain))
    return Verdict(plain, heatsink, share, recovery, findings)


def _kept_everything(ended: ReadBack) -> bool:
    return not (ended.lost or ended.duplicated or ended.totals.dropped)


def _kept(ended: ReadBack) -> Finding:
    totals = ended.totals
    if _kept_everything(ended):
        return Finding(
            True,
            f"Heatsink accepted all {totals.offered:,} messages. Read back, every one of them is "
            "there, once.",
        )
    return Finding(
        False,
        f"Heatsink dropped {totals.dropped:,}, lost {ended.lost:,} and duplicated "
        f"{ended.duplicated:,} of {totals.offered:,} messages. It must not.",
    )


def _refused(
    plain: ReadBack, heatsink: ReadBack, share: float, recovery: Recovery | None
) -> Finding:
    refused, of = heatsink.totals.throttled, plain.totals.throttled
    good = share < THROTTLED_SHARE_MAX if recovery is None else None
    goal = "" if good is None else f" (goal: under {THROTTLED_SHARE_MAX:.0%})"
    return Finding(
        good,
        f"The store refused {refused:,} tries of Heatsink and {of:,} of the plain client: "
        f"{share:.2%}{goal}.",
    )


def _recovered(recovery: Recovery) -> list[Finding]:
    return [
        Finding(
            recovery.spread_s <= RECOVERY_S_MAX,
            f"{recovery.spread_s:.1f} s after the jump Heatsink had spread the conversation: from "
            f"then on every new write was accepted at once (goal: {RECOVERY_S_MAX:g} s).",
        ),
        Finding(
            recovery.drained_s <= RECOVERY_S_MAX,
            f"{recovery.drained_s:.1f} s after the jump the last write that had to wait was in "
            f"(goal: {RECOVERY_S_MAX:g} s).",
        ),
    ]


def _gone(plain: ReadBack) -> Finding:
    totals = plain.totals
    share = totals.dropped / max(totals.offered, 1)
    return Finding(
        None,
        f"The plain store dropped {totals.dropped:,} of the same messages ({share:.0%}), after "
        "three tries each.",
    )
