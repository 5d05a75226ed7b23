"""The requests that the emulator accepts, field by field.

An unknown field is an error. If the emulator ignored it, an application could rely on a field that
has no effect.

Types carry DynamoDB's constraints. `shapes.py` explains in DynamoDB's words which constraint a
refused request violates. DynamoDB lists violated constraints in an order of its own, which depends
on the operation: `ORDER` names the fields that come first.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from heatsink.stores.dynamodb.wire.values import Item, Value

ReturnCapacity = Literal["INDEXES", "TOTAL", "NONE"]
ReturnMetrics = Literal["SIZE", "NONE"]
ReturnValues = Literal["ALL_NEW", "UPDATED_OLD", "ALL_OLD", "NONE", "UPDATED_NEW"]
Selected = Literal["SPECIFIC_ATTRIBUTES", "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"]
OldOrNone = Literal["ALL_OLD", "NONE"]
Operator = Literal["OR", "AND"]
Comparison = Literal[
    "IN", "NULL", "BETWEEN", "LT", "NOT_CONTAINS", "EQ", "GT", "NOT_NULL", "NE", "LE",
    "BEGINS_WITH", "GE", "CONTAINS",
]  # fmt: skip
NAME_PATTERN = "[a-zA-Z0-9_.-]+"
TableName = Annotated[str, Meta(extra={"least": 1, "most": 255, "pattern": NAME_PATTERN})]
IndexName = Annotated[str, Meta(extra={"least": 3, "most": 255, "pattern": NAME_PATTERN})]
GivenName = Annotated[
    str, Meta(extra={"least": 1, "most": 255, "pattern": NAME_PATTERN, "named": True})
]
Count = Annotated[int, Meta(ge=1)]
Long = Annotated[int, Meta(extra={"java": "Long"})]
Units = Annotated[int, Meta(ge=1, extra={"java": "Long"})]
Names = dict[str, str]
Values = dict[str, Value]
AttributeNames = Annotated[list[str], Meta(min_length=1)]


class Request(msgspec.Struct, rename="pascal", forbid_unknown_fields=True, kw_only=True):
    ORDER: ClassVar[str] = ""
    JAVA: ClassVar[str] = ""
    """The name of the class on AWS, which some errors tell, if it is not that of the class here."""


class ExpectedAttributeValue(Request, kw_only=True):
    """A condition of the legacy parameter Expected."""

    attribute_value_list: list[Value] | None = None
    comparison_operator: Comparison | None = None
    exists: bool | None = None
    value: Value | None = None


class Condition(Request, kw_only=True):
    """A condition of the legacy parameters KeyConditions, QueryFilter and ScanFilter."""

    attribute_value_list: list[Value] | None = None
    comparison_operator: Comparison


class AttributeValueUpdate(Request, kw_only=True):
    """An update of the legacy parameter AttributeUpdates."""

    action: Literal["ADD", "PUT", "DELETE"] = "PUT"
    value: Value | None = None


class WithExpressions(Request, kw_only=True):
    expression_attribute_names: Names | None = None
    expression_attribute_values: Values | None = None


class Write(WithExpressions, kw_only=True):
    table_name: TableName
    condition_expression: str | None = None
    return_values_on_condition_check_failure: OldOrNone = "NONE"


class SingleWrite(Write, kw_only=True):
    return_consumed_capacity: ReturnCapacity = "NONE"
    return_item_collection_metrics: ReturnMetrics = "NONE"
    return_values: ReturnValues = "NONE"
    conditional_operator: Operator | None = None
    expected: dict[str, ExpectedAttributeValue] | None = None


class PutItem(SingleWrite, kw_only=True):
    ORDER = "return_consumed_capacity table_name item conditional_operator expected return_values"
    item: Item


class DeleteItem(SingleWrite, kw_only=True):
    ORDER = "return_consumed_capacity table_name return_values return_item_collection_metrics key"
    key: Item


class UpdateItem(SingleWrite, kw_only=True):
    ORDER = "return_consumed_capacity table_name return_item_collection_metrics return_values key"
    key: Item
    update_expression: str | None = None
    attribute_updates: dict[str, AttributeValueUpdate] | None = None


class GetItem(Request, kw_only=True):
    ORDER = "return_consumed_capacity attributes_to_get table_name"
    table_name: TableName
    key: Item
    consistent_read: bool = False
    projection_expression: str | None = None
    attributes_to_get: AttributeNames | None = None
    expression_attribute_names: Names | None = None
    return_consumed_capacity: ReturnCapacity = "NONE"


class PageRequest(WithExpressions, kw_only=True):
    """The fields that queries and scans share."""

    table_name: TableName
    index_name: IndexName | None = None
    select: Selected | None = None
    consistent_read: bool = False
    exclusive_start_key: Item | None = None
    filter_expression: str | None = None
    projection_expression: str | None = None
    attributes_to_get: AttributeNames | None = None
    conditional_operator: Operator | None = None
    return_consumed_capacity: ReturnCapacity = "NONE"


class Query(PageRequest, kw_only=True):
    ORDER = (
        "select index_name return_consumed_capacity query_filter table_name conditional_operator "
        "attributes_to_get limit key_conditions"
    )
    limit: Annotated[int, Meta(ge=1, extra={"modern": True})] | None = None
    key_condition_expression: str | None = None
    key_conditions: dict[str, Condition] | None = None
    query_filter: dict[str, Condition] | None = None
    scan_index_forward: bool = True


class Scan(PageRequest, kw_only=True):
    ORDER = (
        "select index_name total_segments return_consumed_capacity table_name conditional_operator "
        "scan_filter segment limit attributes_to_get"
    )
    limit: Count | None = None
    scan_filter: dict[str, Condition] | None = None
    segment: Annotated[int, Meta(ge=0, le=999_999)] | None = None
    total_segments: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class KeysAndAttributes(Request, kw_only=True):
    keys: Annotated[list[Item], Meta(min_length=1, max_length=100, extra={"modern": True})]
    consistent_read: bool = False
    projection_expression: str | None = None
    attributes_to_get: AttributeNames | None = None
    expression_attribute_names: Names | None = None


class BatchGetItem(Request, kw_only=True):
    ORDER = "return_consumed_capacity"
    request_items: dict[TableName, KeysAndAttributes]
    return_consumed_capacity: ReturnCapacity = "NONE"


class PutRequest(Request, kw_only=True):
    item: Item


class DeleteRequest(Request, kw_only=True):
    key: Item


class WriteRequest(Request, kw_only=True):
    delete_request: DeleteRequest | None = None
    put_request: PutRequest | None = None


class BatchWriteItem(Request, kw_only=True):
    ORDER = "return_consumed_capacity return_item_collection_metrics"
    request_items: dict[TableName, Annotated[list[WriteRequest], Meta(min_length=1, max_length=25)]]
    return_consumed_capacity: ReturnCapacity = "NONE"
    return_item_collection_metrics: ReturnMetrics = "NONE"


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
    transact_items: Annotated[list[TransactWriteItem], Meta(min_length=1, max_length=100)]
    client_request_token: Annotated[str, Meta(min_length=1, max_length=36)] | None = None
    return_consumed_capacity: ReturnCapacity = "NONE"
    return_item_collection_metrics: ReturnMetrics = "NONE"


class TransactGet(Request, kw_only=True):
    table_name: TableName
    key: Item
    projection_expression: str | None = None
    expression_attribute_names: Names | None = None


class TransactGetItem(Request, kw_only=True):
    get: TransactGet


class TransactGetItems(Request, kw_only=True):
    transact_items: Annotated[list[TransactGetItem], Meta(min_length=1, max_length=100)]
    return_consumed_capacity: ReturnCapacity = "NONE"


class AttributeDefinition(Request, kw_only=True):
    attribute_name: str
    attribute_type: Literal["B", "N", "S"]


class KeySchemaElement(Request, kw_only=True):
    attribute_name: str
    key_type: Literal["HASH", "RANGE"]


class ProvisionedThroughput(Request, kw_only=True):
    ORDER = "write_capacity_units read_capacity_units"
    read_capacity_units: Units
    write_capacity_units: Units


class OnDemandThroughput(Request, kw_only=True):
    max_read_request_units: Long = -1
    max_write_request_units: Long = -1


class WarmThroughput(Request, kw_only=True):
    read_units_per_second: Long | None = None
    write_units_per_second: Long | None = None


class IndexProjection(Request, kw_only=True):
    JAVA = "Projection"
    projection_type: Literal["ALL", "INCLUDE", "KEYS_ONLY"] | None = None
    non_key_attributes: list[str] | None = None


class LocalSecondaryIndex(Request, kw_only=True):
    ORDER = "index_name provisioned_throughput key_schema"
    index_name: IndexName
    key_schema: Annotated[list[KeySchemaElement], Meta(min_length=1)]
    projection: IndexProjection


class GlobalSecondaryIndex(LocalSecondaryIndex, kw_only=True):
    provisioned_throughput: ProvisionedThroughput | None = None
    on_demand_throughput: OnDemandThroughput | None = None
    warm_throughput: WarmThroughput | None = None


class StreamSpecification(Request, kw_only=True):
    stream_enabled: bool
    stream_view_type: (
        Literal["NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES", "KEYS_ONLY"] | None
    ) = None


class Tag(Request, kw_only=True):
    key: str
    value: str


class Encryption(Request, kw_only=True):
    """The field SSESpecification. The emulator stores it and encrypts nothing."""

    JAVA = "SSESpecification"

    enabled: bool | None = None
    sse_type: Literal["AES256", "KMS"] | None = msgspec.field(default=None, name="SSEType")
    kms_master_key_id: str | None = msgspec.field(default=None, name="KMSMasterKeyId")


BillingMode = Literal["PROVISIONED", "PAY_PER_REQUEST"]
TableClass = Literal["STANDARD", "STANDARD_INFREQUENT_ACCESS"]


class CreateTable(Request, kw_only=True):
    table_name: Annotated[str, Meta(extra={"named": True})]
    attribute_definitions: list[AttributeDefinition]
    key_schema: list[KeySchemaElement]
    billing_mode: BillingMode | None = None
    provisioned_throughput: ProvisionedThroughput | None = None
    on_demand_throughput: OnDemandThroughput | None = None
    warm_throughput: WarmThroughput | None = None
    global_secondary_indexes: list[GlobalSecondaryIndex] | None = None
    local_secondary_indexes: list[LocalSecondaryIndex] | None = None
    stream_specification: StreamSpecification | None = None
    deletion_protection_enabled: bool | None = None
    table_class: TableClass | None = None
    tags: list[Tag] | None = None
    sse_specification: Encryption | None = msgspec.field(default=None, name="SSESpecification")


class CreateIndex(GlobalSecondaryIndex, kw_only=True):
    """The field `Create` of an element of GlobalSecondaryIndexUpdates."""

    JAVA = "CreateGlobalSecondaryIndexAction"


class UpdateIndex(Request, kw_only=True):
    JAVA = "UpdateGlobalSecondaryIndexAction"
    index_name: IndexName
    provisioned_throughput: ProvisionedThroughput | None = None
    on_demand_throughput: OnDemandThroughput | None = None
    warm_throughput: WarmThroughput | None = None


class DeleteIndex(Request, kw_only=True):
    JAVA = "DeleteGlobalSecondaryIndexAction"
    index_name: IndexName


class IndexUpdate(Request, kw_only=True):
    JAVA = "GlobalSecondaryIndexUpdate"
    create: CreateIndex | None = None
    update: UpdateIndex | None = None
    delete: DeleteIndex | None = None


class UpdateTable(Request, kw_only=True):
    table_name: GivenName
    attribute_definitions: list[AttributeDefinition] | None = None
    billing_mode: BillingMode | None = None
    provisioned_throughput: ProvisionedThroughput | None = None
    on_demand_throughput: OnDemandThroughput | None = None
    warm_throughput: WarmThroughput | None = None
    global_secondary_index_updates: list[IndexUpdate] | None = None
    stream_specification: StreamSpecification | None = None
    deletion_protection_enabled: bool | None = None
    table_class: TableClass | None = None
    sse_specification: Encryption | None = msgspec.field(default=None, name="SSESpecification")


class OneTable(Request, kw_only=True):
    table_name: GivenName


class ListTables(Request, kw_only=True):
    exclusive_start_table_name: TableName | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100


class TimeToLive(Request, kw_only=True):
    attribute_name: Annotated[str, Meta(min_length=1, max_length=255)]
    enabled: bool


class UpdateTimeToLive(Request, kw_only=True):
    table_name: TableName
    time_to_live_specification: TimeToLive


class TagResource(Request, kw_only=True):
    resource_arn: str
    tags: list[Tag]


class UntagResource(Request, kw_only=True):
    resource_arn: str
    tag_keys: list[str]


class ListTagsOfResource(Request, kw_only=True):
    resource_arn: str
    next_token: str | None = None


class Nothing(Request, kw_only=True):
    """A request without fields."""


class ListStreams(Request, kw_only=True):
    table_name: TableName | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100
    exclusive_start_stream_arn: str | None = None


class ShardFilter(Request, kw_only=True):
    type: Literal["CHILD_SHARDS"]
    shard_id: Annotated[str, Meta(min_length=28, max_length=65)]


class DescribeStream(Request, kw_only=True):
    stream_arn: str
    limit: Annotated[int, Meta(ge=1, le=100)] = 100
    exclusive_start_shard_id: str | None = None
    shard_filter: ShardFilter | None = None


class GetShardIterator(Request, kw_only=True):
    stream_arn: str
    shard_id: str
    shard_iterator_type: Literal[
        "TRIM_HORIZON", "LATEST", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"
    ]
    sequence_number: str | None = None
    timestamp: float | None = None


class GetRecords(Request, kw_only=True):
    shard_iterator: str
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
