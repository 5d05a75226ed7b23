"""A process as Lambda runs it: it works when it is called, and stands still in between.

It reads calls from its standard input, one a line, and writes an answer for each.
"""

from __future__ import annotations

import json
import sys

import boto3

from heatsink.boto import attach
from heatsink.door.declaration import SpreadTable, by_time
from heatsink.door.times import millis_text


def main(endpoint: str, registry: str, table: str, news: str) -> None:
    client = boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 (the emulator takes any)
    )
    rules = [by_time("", millis_text)]
    declared = SpreadTable(table, partition_key="conversation", sort_key="sent", rules=rules)
    with attach(
        client, tables=[declared], registry=registry, coordinate=False, news=news or None
    ) as attachment:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in sys.stdin:
            operation, parameters = json.loads(line)
            answer = getattr(client, operation)(TableName=table, **parameters)
            attachment.flush()
            answer.pop("ResponseMetadata")
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
