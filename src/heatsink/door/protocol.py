"""What an operation asks of its driver, and the errors of the DynamoDB protocol.

An operation of the core is a generator. It yields a list of needs, which the driver may meet in
parallel. The driver sends it the answers, in the same order. In the end the operation returns the
body of the answer for the application, or raises `WireError`. The answer to a need may be a
`WireError`: then the call failed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from heatsink.errors import HeatsinkError
from heatsink.stores.dynamodb.wire.errors import VALIDATION, EngineError

Body = dict[str, Any]
BAD_REQUEST = 400
THROTTLES = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
}
"""The errors of a call that was not done because a limit was exceeded.

A conflict of transactions is not among them: it concerns one item, and more buckets do not help.
"""
OURS = "Heatsink: "  # begins the message of an error that is not DynamoDB's


class UpstreamCall(NamedTuple):
    """A request to send upstream once.

    The driver repeats it only if the answer says that nothing was done. `label` is the name of the
    partition key in the registry. It is empty if the call concerns no key or several keys.
    Throttling of the call counts as heat of that key. `bucket` is None for the bare key. `values`
    names the values of spread indexes that the call writes. If an index throttles the call, this
    counts as heat of these values.
    """

    operation: str
    parameters: Body
    label: str = ""
    bucket: int | None = None
    values: tuple[str, ...] = ()


class LayoutOf(NamedTuple):
    """Read a key's layout from the registry's store. The answer is the `Layout`."""

    label: str


class Reach(NamedTuple):
    """A need: wait until the horizon is past `time_ms`, so that an item of that time can be placed.

    If the time is more than `ahead_ms` after now, the answer is a `WireError`.
    """

    time_ms: int
    ahead_ms: int


class Renew(NamedTuple):
    """Renew the view from the registry's store."""


Need = UpstreamCall | LayoutOf | Reach | Renew
Steps = Generator[list[Need], list[Any], Body]


class WireError(HeatsinkError):
    """An error response of the DynamoDB protocol: its HTTP status and its body."""

    def __init__(self, status: int, body: Body) -> None:
        super().__init__(f"{body.get('__type', '')}: {message_of(body)}")
        self.status = status
        self.body = body

    @property
    def code(self) -> str:
        """The name of the error, such as `ValidationException`."""
        return str(self.body.get("__type", "")).rsplit("#", 1)[-1]

    @property
    def message(self) -> str:
        return message_of(self.body)


def message_of(body: Body) -> str:
    return str(body.get("message") or body.get("Message") or "")


def is_of_index(body: Body) -> bool:
    """Return whether an index throttled the request, and not the table's own partitions."""
    reasons = [*(body.get("throttlingReasons") or ()), *(body.get("ThrottlingReasons") or ())]
    names = [str(one.get("reason")) for one in reasons if isinstance(one, dict)]
    return bool(names) and all(name.startswith("Index") for name in names)


def refusal(reason: str) -> WireError:
    """Return the error for a request that is not possible on a spread table."""
    return WireError(BAD_REQUEST, {"__type": VALIDATION, "message": f"{OURS}{reason}"})


def of_engine(error: EngineError) -> WireError:
    """Convert an error of the parsers and checks shared with the emulator to an error response."""
    return WireError(BAD_REQUEST, error.body())


def checked(answers: list[Any]) -> list[Any]:
    """Return the answers, or raise the first error among them."""
    for answer in answers:
        if isinstance(answer, WireError):
            raise answer
    return answers
