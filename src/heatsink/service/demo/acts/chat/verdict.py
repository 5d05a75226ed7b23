"""How the chat ended, and what to make of it."""

from __future__ import annotations

import msgspec

from heatsink.service.demo.act import Finding, Verdict
from heatsink.service.demo.lanes.lane import Lane
from heatsink.service.demo.lanes.meter import Totals

from .contenders import Chat
from .young import YoungTable, why_both

THROTTLED_SHARE_MAX = 0.01
RECOVERY_S_MAX = 3.0


class Recovery(msgspec.Struct, frozen=True):
    """Seconds after the jump until no new write was refused, and until none was waiting."""

    spread_s: float
    drained_s: float


class ReadBack(msgspec.Struct, frozen=True):
    """How a lane ended, counted by reading everything back from its store.

    `lost` was accepted and is not there; `duplicated` is there more than once.
    """

    totals: Totals
    found: int
    lost: int
    duplicated: int


async def read_back(lane: Lane, chat: Chat) -> ReadBack:
    """Each accepted message must be there under its id, exactly once."""
    found = [row async for row in chat.read_back()]
    there = {(body, raw) for raw, body in found}
    messages = {body for _, body in found}
    return ReadBack(
        totals=lane.totals_now(),
        found=len(found),
        lost=len(lane.accepted.items() - there),
        duplicated=len(found) - len(messages),
    )


class ChatVerdict(Verdict, frozen=True, tag="verdict"):
    plain: ReadBack
    heatsink: ReadBack
    throttled_share: float
    recovery: Recovery | None
    young: list[YoungTable]


def reach_verdict(
    plain: ReadBack,
    heatsink: ReadBack,
    recovery: Recovery | None,
    gentle: bool = True,
    young: list[YoungTable] | None = None,
) -> ChatVerdict:
    """`throttled_share` is Heatsink's refusals as a share of the plain store's.

    Only of traffic that rises gently is it promised how few they are.
    """
    share = heatsink.totals.throttled / max(plain.totals.throttled, 1)
    promised = gentle and recovery is None
    findings = [_kept(heatsink), _refused(plain, heatsink, share, promised)]
    if recovery is not None:
        findings += _recovered(recovery)
    findings.append(_gone(plain))
    if young:
        findings.append(why_both(young))
    line, kept = _line(plain, heatsink), _kept_everything(heatsink)
    return ChatVerdict(line, kept, findings, plain, heatsink, share, recovery, young or [])


def _line(plain: ReadBack, heatsink: ReadBack) -> str:
    ours, theirs = heatsink.totals, plain.totals
    return (
        f"Throttled {ours.throttled:,} with Heatsink against {theirs.throttled:,} without; "
        f"messages dropped: {ours.dropped:,} against {theirs.dropped:,}."
    )


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


def _refused(plain: ReadBack, heatsink: ReadBack, share: float, promised: bool) -> Finding:
    refused, of = heatsink.totals.throttled, plain.totals.throttled
    good = share < THROTTLED_SHARE_MAX if promised else None
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
