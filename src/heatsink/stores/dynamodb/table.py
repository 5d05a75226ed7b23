"""One DynamoDB table: requests about it, pages of it, and its making."""

from __future__ import annotations

from typing import Any

from heatsink.clock import Clock
from heatsink.errors import Misconfigured, Throttled, Unavailable

from .client import DynamoClient, Item, Result, Turns
from .items import ATTRIBUTES, KEY_SCHEMA, TTL_ATTRIBUTE

DELETE_AT_ONCE = 25
INSIST_S = 1.0  # less than a lease, so that no leader loses it meanwhile
INSIST_PAUSE_S = 0.02
REGISTRY_CONNECTIONS_MAX = 16


class Table:
    def __init__(self, client: DynamoClient, name: str) -> None:
        self.name = name
        self.client = client

    async def call(self, operation: str, request: Item) -> Result:
        return await self._send(operation, {"TableName": self.name, **request})

    async def _send(self, operation: str, request: Item) -> Result:
        return await self.client.call(operation, request)

    async def get(self, key: Item, consistent: bool) -> Item | None:
        answer = await self.call("GetItem", {"Key": key, "ConsistentRead": consistent})
        return answer.body.get("Item")

    async def page(
        self, operation: str, request: Item, start: Item | None
    ) -> tuple[list[Item], Item | None]:
        """One page of a Query or Scan, and where the next one starts."""
        if start is not None:
            request = {**request, "ExclusiveStartKey": start}
        body = (await self.call(operation, request)).body
        return body["Items"], body.get("LastEvaluatedKey")

    async def everything(self, partition: str, low: Item, high: Item) -> list[Item]:
        """All items of a partition between two sort keys, strongly read."""
        items: list[Item] = []
        start: Item | None = None
        request = {
            "KeyConditionExpression": "p = :p AND s BETWEEN :low AND :high",
            "ExpressionAttributeValues": {":p": {"S": partition}, ":low": low, ":high": high},
            "ConsistentRead": True,
        }
        while True:
            found, start = await self.page("Query", request, start)
            items += found
            if start is None:
                return items

    async def write_together(self, writes: list[Item]) -> tuple[float, int | None]:
        """One transaction. Each write is `{"Put" | "Update" | "ConditionCheck": request}`.

        Returns the write units that it cost, and in which partition; 0 and None if it is not said.
        """
        items = []
        for write in writes:
            ((action, request),) = write.items()
            items.append({action: {"TableName": self.name, **request}})
        request = {"TransactItems": items, "ReturnConsumedCapacity": "TOTAL"}
        answer = await self._send("TransactWriteItems", request)
        for cost in answer.body.get("ConsumedCapacity", []):  # there is one table
            return float(cost["CapacityUnits"]), cost.get("Partition")
        return 0.0, None

    async def read_together(self, keys: list[Item]) -> list[Item | None]:
        """Items as of one moment."""
        gets = [{"Get": {"TableName": self.name, "Key": key}} for key in keys]
        answer = await self._send("TransactGetItems", {"TransactItems": gets})
        return [response.get("Item") for response in answer.body["Responses"]]

    async def delete_all(self, keys: list[Item]) -> None:
        for first in range(0, len(keys), DELETE_AT_ONCE):
            deletes: Any = [
                {"DeleteRequest": {"Key": {"p": key["p"], "s": key["s"]}}}
                for key in keys[first : first + DELETE_AT_ONCE]
            ]
            await self._write_batch(deletes)

    async def _write_batch(self, requests: Any) -> None:
        request = {"RequestItems": {self.name: requests}}
        answer = await self._send("BatchWriteItem", request)
        if answer.body.get("UnprocessedItems"):
            raise Unavailable("DynamoDB left some deletes undone: retry")

    async def create(self, write_units: int | None = None, read_units: int | None = None) -> None:
        """Make the table, on demand or with provisioned units, and let rows expire."""
        request: Item = {
            "KeySchema": KEY_SCHEMA,
            "AttributeDefinitions": ATTRIBUTES,
            "BillingMode": "PAY_PER_REQUEST",
        }
        if write_units is not None:
            request["BillingMode"] = "PROVISIONED"
            request["ProvisionedThroughput"] = {
                "WriteCapacityUnits": write_units,
                "ReadCapacityUnits": read_units or write_units,
            }
        await self.call("CreateTable", request)

    async def expire_rows(self) -> None:
        specification = {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
        await self.call("UpdateTimeToLive", {"TimeToLiveSpecification": specification})

    async def check_schema(self) -> None:
        """Refuse a table that was made for something else, or that replicates behind our back."""
        described = (await self.call("DescribeTable", {})).body.get("Table", {})
        schema, types = described.get("KeySchema", []), described.get("AttributeDefinitions", [])
        if schema != KEY_SCHEMA or any(kind not in types for kind in ATTRIBUTES):
            raise Misconfigured(
                f"table {self.name!r} has other keys than Heatsink's (p: string, s: binary): "
                "name another one, or make it: heatsink table create"
            )
        if described.get("Replicas"):
            raise Misconfigured(
                f"table {self.name!r} replicates to other regions: eventually, so that a reader "
                "there would miss acknowledged rows, or strongly, without the transactions that "
                "the registry needs. Use a table in one region"
            )

    async def is_active(self) -> bool:
        described = (await self.call("DescribeTable", {})).body["Table"]
        return bool(described.get("TableStatus", "ACTIVE") == "ACTIVE")


class RegistryTable(Table):
    """Tries again at once what is throttled, since the registry may share a partition with the heat
    that its decision is to end. A turn of the coordinator takes several requests: if each is tried
    only once, beside writers who never rest, hardly a turn comes to its end.

    It does not stand in line behind the rows either, since rows wait for it: for the closed time.
    """

    def __init__(self, client: DynamoClient, name: str, clock: Clock) -> None:
        super().__init__(client, name)
        self._clock = clock
        self._turns = Turns(REGISTRY_CONNECTIONS_MAX)

    async def _send(self, operation: str, request: Item) -> Result:
        until_s = self._clock.monotonic_s() + INSIST_S
        while True:
            try:
                return await self.client.call(operation, request, self._turns)
            except Throttled:
                if self._clock.monotonic_s() + INSIST_PAUSE_S > until_s:
                    raise
                await self._clock.sleep(INSIST_PAUSE_S)
