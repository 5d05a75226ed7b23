"""The errors of the DynamoDB protocol, as the service words and shapes them.

    EngineError               a response with status 400, `__type` and a message
    ├── NotSerializable       a field has the wrong JSON type: SerializationException
    ├── ValidationFailed      the request is wrong: ValidationException
    │   └── DoesNotFit        it is valid, but not for the stored item
    ├── ConditionFailed       ConditionalCheckFailedException, with the item if requested
    ├── Refused               any other named error: ResourceNotFoundException and the like
    ├── Throttled             over a limit: ProvisionedThroughputExceeded- or ThrottlingException
    └── TransactionCanceled   TransactionCanceledException with a reason for every action

A throttled request gets the error that AWS documents under cancellation reasons: a
ThrottlingException that mentions hot keys for writes to an on-demand table, and a
ProvisionedThroughputExceededException otherwise. Both carry the reasons, in the field that the
service model names (`throttlingReasons` and `ThrottlingReasons`).
"""

from __future__ import annotations

from typing import Any

from heatsink.errors import HeatsinkError

SERVICE = "com.amazonaws.dynamodb.v20120810#"
VALIDATION = "com.amazon.coral.validate#ValidationException"
SERIALIZATION = "com.amazon.coral.service#SerializationException"
THROTTLING = "com.amazon.coral.availability#ThrottlingException"
EXCEEDED = SERVICE + "ProvisionedThroughputExceededException"

PROVISIONED_MESSAGE = (
    "The level of configured provisioned throughput for the table was exceeded. "
    "Consider increasing your provisioning level with the UpdateTable API."
)
INDEX_MESSAGE = (
    "The level of configured provisioned throughput for one or more global secondary indexes of "
    "the table was exceeded. Consider increasing your provisioning level for the "
    "under-provisioned global secondary indexes with the UpdateTable API"
)
ON_DEMAND_MESSAGE = (
    "Throughput exceeds the current capacity of your table or index. DynamoDB is automatically "
    "scaling your table or index so please try again shortly. If exceptions persist, check if you "
    "have a hot key: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/"
    "bp-partition-key-design.html"
)
CONDITION_MESSAGE = "The conditional request failed"


class EngineError(HeatsinkError):
    """An error of DynamoDB: a response with status 400. `kind` is its full name on the wire."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def body(self) -> dict[str, Any]:
        return {"__type": self.kind, "message": self.message}


class NotSerializable(EngineError):
    """The request is no JSON, or a field has the wrong JSON type."""

    def __init__(self, message: str) -> None:
        super().__init__(SERIALIZATION, message)

    def body(self) -> dict[str, Any]:
        return {"__type": self.kind, "Message": self.message}


class ValidationFailed(EngineError):
    """The request is malformed. The same request can never succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(VALIDATION, message)


class DoesNotFit(ValidationFailed):
    """The request is well-formed, but cannot be applied to the stored item."""


class ServiceRefused(EngineError):
    """Any other error of the service that has only a name and a message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(SERVICE + name, message)


class NotFound(ServiceRefused):
    """The table, or what else the request names, does not exist."""


class ConditionFailed(EngineError):
    """The condition did not hold. `item` is the stored item, if the request asked for it."""

    def __init__(self, item: dict[str, Any] | None = None) -> None:
        super().__init__(SERVICE + "ConditionalCheckFailedException", CONDITION_MESSAGE)
        self.item = item

    def body(self) -> dict[str, Any]:
        found = {} if self.item is None else {"Item": self.item}
        return {**super().body(), **found}


class Throttled(EngineError):
    """A partition, a table or a global index is over its limit. `resource` is its ARN."""

    def __init__(self, reason: str, resource: str, on_demand: bool) -> None:
        self.scaling = on_demand and "Write" in reason
        provisioned = INDEX_MESSAGE if reason.startswith("Index") else PROVISIONED_MESSAGE
        if self.scaling:
            super().__init__(THROTTLING, ON_DEMAND_MESSAGE)
        else:
            super().__init__(EXCEEDED, provisioned)
        self.reason = reason
        self.resource = resource

    def body(self) -> dict[str, Any]:
        field = "throttlingReasons" if self.scaling else "ThrottlingReasons"
        return {**super().body(), field: [{"reason": self.reason, "resource": self.resource}]}


class TransactionCanceled(EngineError):
    """The transaction wrote nothing. `reasons` has one reason per action, in order."""

    def __init__(self, reasons: list[dict[str, Any]]) -> None:
        codes = ", ".join(reason["Code"] for reason in reasons)
        super().__init__(
            SERVICE + "TransactionCanceledException",
            f"Transaction cancelled, please refer cancellation reasons for specific reasons "
            f"[{codes}]",
        )
        self.reasons = reasons

    def body(self) -> dict[str, Any]:
        return {
            "__type": self.kind,
            "Message": self.message,
            "CancellationReasons": self.reasons,
        }


NO_REASON: dict[str, Any] = {"Code": "None"}


def cancellation_reason(error: EngineError) -> dict[str, Any]:
    """Convert the error of one action to its reason in a canceled transaction."""
    if isinstance(error, ConditionFailed):
        found = {} if error.item is None else {"Item": error.item}
        return {"Code": "ConditionalCheckFailed", "Message": error.message, **found}
    if isinstance(error, Throttled):
        code = "ThrottlingError" if error.scaling else "ProvisionedThroughputExceeded"
        return {"Code": code, "Message": error.message}
    return {"Code": "ValidationError", "Message": error.message}


def constraint_failed(member: str, constraint: str) -> ValidationFailed:
    """Return the error for a field that violates a constraint, in the service's wording.

    `member` names the field and may include its value: `Value 'x' at 'limit'`.
    """
    return ValidationFailed(
        f"1 validation error detected: {member} failed to satisfy constraint: Member must "
        f"{constraint}"
    )


def not_found(message: str = "Requested resource not found") -> NotFound:
    return NotFound("ResourceNotFoundException", message)
