"""A service with Powertools for AWS Lambda: `python -m tests.boto.on_powertools ENDPOINT TABLE …`.

It pays orders once each with the idempotency layer, whose records all have one partition key, and
reads parameters. With the URL of a registry as the third argument, its clients are attached. It
runs in an environment of its own (powertools.txt), and prints what a person would see as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import boto3

from heatsink.boto import attach
from heatsink.door.declaration import SpreadTable, fixed

ORDERS = 20
SERVICE = "shop"  # begins the keys of idempotency records
utilities = "aws_lambda_powertools.utilities"


def declared(table: str) -> SpreadTable:
    rules = [fixed(f"{SERVICE}.", buckets=4), fixed("FLAG#", buckets=3)]
    return SpreadTable(table, partition_key="pk", sort_key="sk", rules=rules)


def main(endpoint: str, table: str, registry: str = "") -> None:
    os.environ["AWS_LAMBDA_FUNCTION_NAME"] = SERVICE
    where: Any = {
        "endpoint_url": endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": "any",
        "aws_secret_access_key": "any",
    }
    client, resource = boto3.client("dynamodb", **where), boto3.resource("dynamodb", **where)
    with ExitStack() as stack:
        for target in (client, resource) if registry else ():
            tables = [declared(table)]
            stack.enter_context(attach(target, tables=tables, registry=registry))
        seen = [*idempotent(client, table), *parameters(resource, table)]
    sys.stdout.write(json.dumps(seen, sort_keys=True))


def idempotent(client: Any, table: str) -> list[Any]:
    """Pay orders, each of them twice."""
    module = import_module(f"{utilities}.idempotency")
    layer = module.DynamoDBPersistenceLayer(
        table_name=table,
        key_attr="pk",
        sort_key_attr="sk",
        static_pk_value="idempotency",
        boto3_client=client,
    )
    paid: list[str] = []

    def pay(order: dict[str, Any]) -> dict[str, Any]:
        paid.append(order["id"])
        if order["id"] == "broken" and paid.count("broken") == 1:
            raise ValueError("the card was refused")
        return {"paid": order["id"], "number": len(paid)}

    config = module.IdempotencyConfig(event_key_jmespath="id")
    once = module.idempotent_function(
        pay, data_keyword_argument="order", persistence_store=layer, config=config
    )
    orders = [{"id": f"o{number}"} for number in range(ORDERS)]
    seen: list[Any] = [once(order=order) for order in (*orders, *orders)]
    try:
        once(order={"id": "broken"})
    except ValueError as error:
        seen.append(str(error))
    return [*seen, once(order={"id": "broken"}), paid]


def parameters(resource: Any, table: str) -> list[Any]:
    """Read all flags of a service, as they were stored."""
    store = resource.Table(table)
    with store.batch_writer() as batch:
        for number in range(ORDERS):
            batch.put_item(Item={"pk": "flags", "sk": f"FLAG#{number}", "value": str(number)})
    module = import_module(f"{utilities}.parameters")
    provider = module.DynamoDBProvider(
        table_name=table, key_attr="pk", sort_attr="sk", boto3_client=resource
    )
    return [provider.get_multiple("flags", max_age=0)]


if __name__ == "__main__":
    main(*sys.argv[1:])
