"""The requests that the emulator accepts, field by field.

An unknown field is an error. If it were ignored, an application might rely on it in vain.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from heatsink.stores.dynamodb.wire.values import Item, Value

ReturnCapacity = Literal["NONE", "TOTAL", "INDEXES"]
OldOrNone = Literal["NONE", "ALL_OLD"]
Names = dict[str, str]
Values = dict[str, Value]


class Request(msgspec.Struct, rename="pascal", forbid_unknown_fields=True, kw_only=True):
    pass


class WithExpressions(Request, kw_only=True):
    expression_attribute_names: Names | None = None
    expression_attribute_values: Values | None = None


class Write(WithExpressions, kw_only=True):
    table_name: str
    condition_expression: str | None = None
    return_values_on_condition_check_failure: OldOrNone = "NONE"


class SingleWrite(Write, kw_only=True):
    return_consumed_capacity: ReturnCapacity = "NONE"
    return_item_collection_metrics: Literal["NONE", "SIZE"] = "NONE"


class PutItem(SingleWrite, kw_only=True):
    item: Item
    return_values: Literal["NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"] = "NONE"


class DeleteItem(SingleWrite, kw_only=True):
    key: Item
    return_values: Literal["NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"] = "NONE"


class UpdateItem(SingleWrite, kw_only=True):
    key: Item
    update_expression: str | None = None
    return_values: Literal["NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"] = "NONE"


class GetItem(Request, kw_only=True):
    table_name: str
    key: Item
    consistent_read: bool = False
    projection_expression: str | None = None
    expression_attribute_names: Names | None = None
    return_consumed_capacity: ReturnCapacity = "NONE"


class PageRequest(WithExpressions, kw_only=True):
    """The fields that queries and scans share."""

    table_name: str
    index_name: str | None = None
    select: (
        Literal["ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES", "SPECIFIC_ATTRIBUTES", "COUNT"] | None
    ) = None
    limit: int | None = None
    consistent_read: bool = False
    exclusive_start_key: Item | None = None
    filter_expression: str | None = None
    projection_expression: str | None = None
    return_consumed_capacity: ReturnCapacity = "NONE"


class Query(PageRequest, kw_only=True):
    key_condition_expression: str | None = None
    scan_index_forward: bool = True


class Scan(PageRequest, kw_only=True):
    segment: int | None = None
    total_segments: int | None = None


class KeysOfTable(Request, kw_only=True):
    keys: list[Item]
    consistent_read: bool = False
    projection_expression: str | None = None
    expression_attribute_names: Names | None = None


class BatchGetItem(Request, kw_only=True):
    request_items: dict[str, KeysOfTable]
    return_consumed_capacity: ReturnCapacity = "NONE"


class PutRequest(Request, kw_only=True):
    item: Item


class DeleteRequest(Request, kw_only=True):
    key: Item


class WriteRequest(Request, kw_only=True):
    put_request: PutRequest | None = None
    delete_request: DeleteRequest | None = None


class BatchWriteItem(Request, kw_only=True):
    request_items: dict[str, list[WriteRequest]]
    return_consumed_capacity: ReturnCapacity = "NONE"
    return_item_collection_metrics: Literal["NONE", "SIZE"] = "NONE"


class TransactPut(Write, kw_only=True):
    item: Item


class TransactDelete(Write, kw_only=True):
    key: Item


class TransactUpdate(Write, kw_only=True):
    key: Item
    update_expression: str


class ConditionCheck(Write, kw_only=True):
    key: Item
    condition_expression: str


class TransactWriteItem(Request, kw_only=True):
    put: TransactPut | None = None
    update: TransactUpdate | None = None
    delete: TransactDelete | None = None
    condition_check: ConditionCheck | None = None


class TransactWriteItems(Request, kw_only=True):
    transact_items: list[TransactWriteItem]
    client_request_token: str | None = None
    return_consumed_capacity: ReturnCapacity = "NONE"
    return_item_collection_metrics: Literal["NONE", "SIZE"] = "NONE"


class TransactGet(Request, kw_only=True):
    table_name: str
    key: Item
    projection_expression: str | None = None
    expression_attribute_names: Names | None = None


class TransactGetItem(Request, kw_only=True):
    get: TransactGet


class TransactGetItems(Request, kw_only=True):
    transact_items: list[TransactGetItem]
    return_consumed_capacity: ReturnCapacity = "NONE"


class AttributeDefinition(Request, kw_only=True):
    attribute_name: str
    attribute_type: Literal["S", "N", "B"]


class KeySchemaElement(Request, kw_only=True):
    attribute_name: str
    key_type: Literal["HASH", "RANGE"]


class ProvisionedThroughput(Request, kw_only=True):
    read_capacity_units: int
    write_capacity_units: int


class OnDemandThroughput(Request, kw_only=True):
    max_read_request_units: int = -1
    max_write_request_units: int = -1


class CreateTable(msgspec.Struct, rename="pascal", kw_only=True):
    """A request to create a table. Fields such as tags and encryption have no effect."""

    table_name: str
    attribute_definitions: list[AttributeDefinition]
    key_schema: list[KeySchemaElement]
    billing_mode: Literal["PROVISIONED", "PAY_PER_REQUEST"] = "PROVISIONED"
    provisioned_throughput: ProvisionedThroughput | None = None
    on_demand_throughput: OnDemandThroughput | None = None
    global_secondary_indexes: list[Any] | None = None
    local_secondary_indexes: list[Any] | None = None


class OneTable(Request, kw_only=True):
    table_name: str


class ListTables(Request, kw_only=True):
    exclusive_start_table_name: str | None = None
    limit: int = 100


class TimeToLive(Request, kw_only=True):
    attribute_name: str
    enabled: bool


class UpdateTimeToLive(Request, kw_only=True):
    table_name: str
    time_to_live_specification: TimeToLive
