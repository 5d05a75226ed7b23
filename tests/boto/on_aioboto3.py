"""The chat and shop with aioboto3: `python -m tests.boto.on_aioboto3 ENDPOINT REGISTRY TABLE AT`.

It runs in an environment of its own, since aioboto3 needs an older aiobotocore than other tests. It
prints a list in JSON: all answers, and at the end how many items a Table of a resource has.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module

from heatsink.boto import attach

from .shop import chat, declared, run_async, shop


async def main(endpoint: str, registry: str, table: str, at: str) -> None:
    first, second = json.loads(at)
    session = import_module("aioboto3").Session(
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 (the emulator takes any)
        region_name="us-east-1",
    )
    with attach(session, tables=[declared(table)], registry=registry, coordinate=False):
        async with session.client("dynamodb", endpoint_url=endpoint) as client:
            answers = await run_async(chat(table, first), client, table)
            answers += await run_async(shop(table, second), client, table)
        async with session.resource("dynamodb", endpoint_url=endpoint) as resource:
            made = await resource.Table(table)
            count = (await made.scan())["Count"]
    sys.stdout.write(json.dumps([*answers, count], default=repr))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
