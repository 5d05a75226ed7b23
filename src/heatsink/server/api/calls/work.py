"""Handlers for remote workers: claim items, renew their leases, report their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.types import Receive

from heatsink.bulk.actions import ATTEMPTS_MAX, DAY_S, Action
from heatsink.bulk.limits import RATES_MAX, RUNNING_MAX, Limit
from heatsink.bulk.work.remote import Handed, ItemOutcome, remote_action
from heatsink.errors import InvalidSetting
from heatsink.server.api.problems import Refusal
from heatsink.server.api.requests import ApiCall, Reply
from heatsink.server.api.shapes import NoQuery, Strict

from .data import from_ms

ITEMS_MAX = 1_000
CLAIM_MAX = 100
WAIT_S_MAX = 20.0
RENEWALS = 3  # per lease
TOKEN_MAX = 4_096
STALE = "the lease has ended: drop the item, which runs elsewhere or has an outcome already"
Token = Annotated[
    str, Meta(min_length=1, max_length=TOKEN_MAX, description="From the claim, unchanged.")
]


class WorkLimit(Strict, frozen=True):
    """A limit of an action, over all workers: as `heatsink.bulk.Limit`."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    running: Annotated[int, Meta(ge=0, le=RUNNING_MAX)] | None = None
    rates: Annotated[tuple[str, ...], Meta(max_length=RATES_MAX)] = ()
    key: Annotated[str, Meta(max_length=512)] = ""
    per: Literal["", "tenant", "action"] = ""


class WorkAction(Strict, frozen=True):
    """How the worker runs an action: as the options of `actions.action` in Python."""

    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] = 5
    timeout_s: Annotated[float, Meta(ge=0.001, le=DAY_S)] = 60.0
    backoff_s: Annotated[float, Meta(ge=0, le=DAY_S)] = 1.0
    backoff_max_s: Annotated[float, Meta(ge=0, le=DAY_S)] = 300.0
    limits: Annotated[tuple[WorkLimit, ...], Meta(max_length=10)] = ()


class Claim(Strict, frozen=True):
    """A claim of up to `most` items of these actions. It waits up to `wait_s` for the first one.

    Renew the items' leases before `lease_s` is over.
    """

    actions: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=100)], WorkAction],
        Meta(min_length=1, max_length=100, description="Options of each action, by its name."),
    ]
    most: Annotated[int, Meta(ge=1, le=CLAIM_MAX)] = 10
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = WAIT_S_MAX
    lease_s: Annotated[float, Meta(ge=1, le=300)] = 10.0


class WorkItem(msgspec.Struct, frozen=True):
    """An item to run. `token` names the attempt in all further calls about it."""

    token: str
    action: str
    item: Any
    batch: str
    index: int
    tenant: str
    attempt: int
    idempotency_key: str
    submitted: datetime


class ClaimAnswer(msgspec.Struct, frozen=True):
    """The claimed items. Renew their leases every `renew_s` seconds until they have an outcome."""

    items: list[WorkItem]
    renew_s: float


class Renewal(Strict, frozen=True):
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=ITEMS_MAX)]


class ItemReport(Strict, frozen=True):
    """The outcome of an item.

    `done` may have a `result`. `retry` counts the attempt, and waits for `after_s` or, without it,
    for the action's backoff. `fail` ends the item. `rate_limited` slows the tenant's items of this
    action down. `back` gives back an item that was not started.
    """

    token: Token
    outcome: Literal["done", "retry", "fail", "rate_limited", "back"]
    result: Any = None
    reason: Annotated[str, Meta(max_length=10_000)] = ""
    after_s: Annotated[float, Meta(ge=0, le=30 * DAY_S)] | None = None


class Outcomes(Strict, frozen=True):
    items: Annotated[list[ItemReport], Meta(min_length=1, max_length=ITEMS_MAX)]


class Accounted(msgspec.Struct, frozen=True):
    """How many items were accepted. The tokens in `stale` were not: drop their items."""

    accepted: int
    stale: list[str]


async def claim(call: ApiCall[NoQuery, Claim]) -> Reply:
    asked = call.body
    actions = {name: _action(name, each) for name, each in asked.actions.items()}
    wait_s = min(asked.wait_s, call.service.limits.request_s / 2)
    terms = actions, asked.most, asked.lease_s, wait_s
    gone = partial(_disconnected, call.receive)
    items = await call.service.workforce.claim(*terms, gone)
    return Reply(ClaimAnswer([_shown(item) for item in items], asked.lease_s / RENEWALS))


def _action(name: str, options: WorkAction) -> Action:
    fields = msgspec.structs.asdict(options)
    try:
        fields["limits"] = [Limit(**msgspec.structs.asdict(limit)) for limit in options.limits]
        return remote_action(name, **fields)
    except InvalidSetting as error:
        wrong = f"actions has an unknown or invalid option for {name!r}: {error}"
        raise InvalidSetting(wrong, field="actions") from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _shown(item: Handed) -> WorkItem:
    lease = item.lease
    return WorkItem(
        token=lease.token,
        action=lease.action,
        item=msgspec.Raw(item.body),
        batch=lease.batch,
        index=item.index,
        tenant=lease.tenant,
        attempt=lease.tries + 1,
        idempotency_key=f"{lease.batch}:{item.index}",
        submitted=from_ms(item.submitted_ms),
    )


async def renew(call: ApiCall[NoQuery, Renewal]) -> Reply:
    tokens = call.body.tokens
    return _accounted(len(tokens), await call.service.workforce.renew(tokens))


async def report(call: ApiCall[NoQuery, Outcomes]) -> Reply:
    reports = [ItemOutcome(**msgspec.structs.asdict(item)) for item in call.body.items]
    return _accounted(len(reports), await call.service.workforce.report(reports))


def _accounted(count: int, stale: Sequence[str]) -> Reply:
    """Return the reply of a call about `count` items; refuse it if all of them are stale."""
    if len(stale) == count:
        raise Refusal(409, STALE, "token")
    return Reply(Accounted(count - len(stale), list(stale)))
