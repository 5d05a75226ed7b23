"""Tags, and the descriptions of the service: limits, endpoints and backups."""

from __future__ import annotations

import re

from heatsink.emulator.database import Database, Json
from heatsink.emulator.requests import (
    ListTagsOfResource,
    Nothing,
    OneTable,
    Tag,
    TagResource,
    UntagResource,
)
from heatsink.emulator.table import EngineTable
from heatsink.stores.dynamodb.wire.errors import EngineError, ValidationFailed

from .definitions import TABLE_UNITS_MAX
from .tables import REGION, named

ARN = re.compile(r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]+:\d{12}:table/[^/]+")
TAGS_MAX, KEY_MAX, VALUE_MAX = 50, 128, 256
ACCOUNT_UNITS_MAX = 80_000
ENDPOINT_MINUTES = 1_440


def _tagged(database: Database, arn: str) -> EngineTable:
    if not ARN.fullmatch(arn):
        raise ValidationFailed(f"Invalid TableArn: Invalid ResourceArn provided as input {arn}")
    table = database.tables.get(arn.rpartition("/")[2])
    if table is None or table.spec.arn != arn:
        raise EngineError(
            "com.amazon.coral.service#AccessDeniedException",
            f"User is not authorized to perform the operation on resource: {arn}",
        )
    return table


def checked_tags(tags: list[Tag]) -> dict[str, str]:
    """Return tags by key. Raises if a key or value is too long."""
    for tag in tags:
        if not 1 <= len(tag.key) <= KEY_MAX or len(tag.value) > VALUE_MAX:
            raise ValidationFailed(
                f"Invalid tag {tag.key!r}: a key has 1 to {KEY_MAX} characters, a value at most "
                f"{VALUE_MAX}"
            )
    return {tag.key: tag.value for tag in tags}


def tag_resource(database: Database, request: TagResource) -> Json:
    table = _tagged(database, request.resource_arn)
    if not request.tags:
        raise ValidationFailed("Atleast one Tag needs to be provided as Input.")
    tags = {**table.tags, **checked_tags(request.tags)}
    if len(tags) > TAGS_MAX:
        raise ValidationFailed(
            f"One or more parameter values were invalid: Too many Tags: {TAGS_MAX} allowed"
        )
    table.tags = tags
    return {}


def untag_resource(database: Database, request: UntagResource) -> Json:
    table = _tagged(database, request.resource_arn)
    if not request.tag_keys:
        raise ValidationFailed("Atleast one Tag Key needs to be provided as Input.")
    for key in request.tag_keys:
        table.tags.pop(key, None)
    return {}


def list_tags_of_resource(database: Database, request: ListTagsOfResource) -> Json:
    table = _tagged(database, request.resource_arn)
    return {"Tags": [{"Key": key, "Value": value} for key, value in table.tags.items()]}


def describe_limits(_: Database, __: Nothing) -> Json:
    return {
        "AccountMaxReadCapacityUnits": ACCOUNT_UNITS_MAX,
        "AccountMaxWriteCapacityUnits": ACCOUNT_UNITS_MAX,
        "TableMaxReadCapacityUnits": TABLE_UNITS_MAX,
        "TableMaxWriteCapacityUnits": TABLE_UNITS_MAX,
    }


def describe_endpoints(_: Database, __: Nothing) -> Json:
    """Return the service's endpoint. SDKs that look for endpoints then keep the one they have."""
    address = f"dynamodb.{REGION}.amazonaws.com"
    return {"Endpoints": [{"Address": address, "CachePeriodInMinutes": ENDPOINT_MINUTES}]}


def describe_continuous_backups(database: Database, request: OneTable) -> Json:
    """Say that there are none: the emulator makes no backups."""
    named(database, request.table_name)
    return {
        "ContinuousBackupsDescription": {
            "ContinuousBackupsStatus": "ENABLED",
            "PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "DISABLED"},
        }
    }
