"""DynamoDB's refusals, told apart: cured by waiting, by more buckets, or by an operator."""

from __future__ import annotations

from typing import Any

import msgspec

from heatsink.errors import (
    HeatsinkError,
    InvalidSetting,
    Misconfigured,
    NoAccess,
    NoTable,
    Throttled,
    Unavailable,
)

THROTTLING = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TransactionInProgressException",
    "TransactionConflictException",
}
CREDENTIALS = {
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "MissingAuthenticationTokenException",
    "MissingAuthenticationToken",
    "ExpiredTokenException",
    "RequestExpired",
    "AccessDeniedException",
    "NotAuthorized",
    "OptInRequired",
}
WRONG_REQUESTS = {"ValidationException", "SerializationException"}


class TableThrottled(Throttled):
    """The table or the account is over its limit: more buckets would not help."""

    def __init__(self, reason: str) -> None:
        super().__init__("", f"{reason}: raise the table's or account's limit")


class TableExists(Misconfigured):
    """There is one already, or it is just being made or deleted."""


class ConditionFailed(HeatsinkError):
    """A condition did not hold; `items` are the old items, by place in a transaction."""

    def __init__(self, codes: list[str], items: list[dict[str, Any] | None]) -> None:
        super().__init__(", ".join(codes))
        self.codes = codes
        self.items = items


class Failure(msgspec.Struct):
    """The body of an error."""

    type_: str = msgspec.field(name="__type", default="")
    message: str | None = None
    Message: str | None = None
    Item: dict[str, Any] | None = None
    CancellationReasons: list[dict[str, Any]] = []
    ThrottlingReasons: list[dict[str, Any]] = []
    throttlingReasons: list[dict[str, Any]] = []  # noqa: N815 (on-demand tables spell it so)

    @property
    def code(self) -> str:
        return self.type_.rsplit("#", 1)[-1]

    @property
    def text(self) -> str:
        return self.message or self.Message or self.code


def failure_of(
    operation: str, payload: dict[str, Any], status: int, answer: bytes
) -> HeatsinkError:
    try:
        failure = msgspec.json.decode(answer, type=Failure)
    except (msgspec.MsgspecError, ValueError):
        failure = Failure()
    if not failure.code:
        return Unavailable(
            f"{operation} was answered with status {status}, and not as DynamoDB does: "
            "check endpoint= in the url, or retry"
        )
    if failure.code == "ConditionalCheckFailedException":
        return ConditionFailed([failure.code], [failure.Item])
    if failure.code == "TransactionCanceledException":
        return _cancelled(failure, payload)
    if failure.code in THROTTLING:
        return _throttled(failure, _partition_of(payload))
    if status >= 500:
        return Unavailable(f"DynamoDB failed ({failure.code}: {failure.text}): retry")
    return _operator_error(failure, payload)


def _cancelled(failure: Failure, payload: dict[str, Any]) -> HeatsinkError:
    codes = [reason.get("Code", "None") for reason in failure.CancellationReasons]
    if "ConditionalCheckFailed" in codes:
        return ConditionFailed(codes, [r.get("Item") for r in failure.CancellationReasons])
    for place, code in enumerate(codes):
        if code in ("TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"):
            return Throttled(_partition_of(payload, place))
    return InvalidSetting(f"DynamoDB refused a transaction: {failure.text}")


def _throttled(failure: Failure, partition: str) -> HeatsinkError:
    """Only a partition's limit is cured by more buckets; without a reason, suppose it is that."""
    reasons = [
        str(reason.get("reason", ""))
        for reason in failure.ThrottlingReasons + failure.throttlingReasons
    ]
    if reasons and not any("KeyRange" in reason for reason in reasons):
        return TableThrottled(", ".join(reasons))
    return Throttled(partition)


def _partition_of(payload: dict[str, Any], place: int = 0) -> str:
    """The partition key that a request is about, wherever its shape has it."""
    if "TransactItems" in payload:
        (payload,) = payload["TransactItems"][place].values()
    values = payload.get("ExpressionAttributeValues", {})
    key = payload.get("Key") or payload.get("Item") or {"p": values.get(":p", {})}
    return str(key.get("p", {}).get("S", ""))


def _operator_error(failure: Failure, payload: dict[str, Any]) -> HeatsinkError:
    table = payload.get("TableName", "")
    if failure.code == "ResourceNotFoundException":
        return NoTable(
            f"there is no DynamoDB table {table!r} in this region: check table and region in the "
            f"url, or make it: heatsink table create"
        )
    if failure.code in CREDENTIALS:
        return NoAccess(
            f"DynamoDB refused the credentials ({failure.code}: {failure.text}): check the AWS_… "
            "variables, profile= in the url, the role and what it may do"
        )
    return _kind(failure.code)(f"DynamoDB refused the request ({failure.code}): {failure.text}")


def _kind(code: str) -> type[InvalidSetting]:
    if code in WRONG_REQUESTS:
        return InvalidSetting
    return TableExists if code == "ResourceInUseException" else Misconfigured
