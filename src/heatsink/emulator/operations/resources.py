"""Tags, and the descriptions of the service: limits, endpoints and backups."""

from __future__ import annotations

import re

from heatsink.emulator.database import Database, Json
from heatsink.emulator.table import EngineTable
from heatsink.stores.dynamodb.wire.errors import (
    EngineError,
    NotFound,
    ValidationFailed,
    not_found,
)
from heatsink.stores.dynamodb.wire.requests import (
    ListTagsOfResource,
    Nothing,
    OneTable,
    TagResource,
    UntagResource,
)

from .definitions import TABLE_UNITS_MAX
from .tables import REGION, checked_tags, named

ARN = re.compile(r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]+:\d{12}:table/[^/]+")
ACCOUNT_UNITS_MAX = 80_000
ENDPOINT_MINUTES = 1_440


def _tagged(database: Database, arn: str) -> EngineTable:
    if not arn.startswith("arn:"):
        raise ValidationFailed(
            f"Invalid TableArn: Invalid ResourceArn provided as input {arn}: ARNs must start with "
            "'arn:'"
        )
    if not ARN.fullmatch(arn):
        raise ValidationFailed(f"Invalid TableArn: Invalid ResourceArn provided as input {arn}")
    table = database.tables.get(arn.rpartition("/")[2])
    if table is None or table.spec.arn != arn:
        raise not_found(f"Requested resource not found: ResourcArn: {arn} not found")
    return table


def tag_resource(database: Database, request: TagResource) -> Json:
    table = _tagged(database, request.resource_arn)
    if not request.tags:
        raise ValidationFailed("Atleast one Tag needs to be provided as Input.")
    table.tags = checked_tags(request.tags, table.tags)
    return {}


def untag_resource(database: Database, request: UntagResource) -> Json:
    table = _tagged(database, request.resource_arn)
    if not request.tag_keys:
        raise ValidationFailed("Atleast one Tag Key needs to be provided as Input.")
    for key in request.tag_keys:
        table.tags.pop(key, None)
    return {}


def list_tags_of_resource(database: Database, request: ListTagsOfResource) -> Json:
    try:
        table = _tagged(database, request.resource_arn)
    except NotFound:
        raise EngineError(
            "com.amazon.coral.service#AccessDeniedException",
            f"User is not authorized to perform the operation on resource: {request.resource_arn}",
        ) from None
    return {"Tags": [{"Key": key, "Value": value} for key, value in table.tags.items()]}


def describe_limits(_: Database, __: Nothing) -> Json:
    return {
        "AccountMaxReadCapacityUnits": ACCOUNT_UNITS_MAX,
        "AccountMaxWriteCapacityUnits": ACCOUNT_UNITS_MAX,
        "TableMaxReadCapacityUnits": TABLE_UNITS_MAX,
        "TableMaxWriteCapacityUnits": TABLE_UNITS_MAX,
    }


def describe_endpoints(_: Database, __: Nothing) -> Json:
    """Return the service's endpoint, so that SDKs with endpoint discovery keep their endpoint."""
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
