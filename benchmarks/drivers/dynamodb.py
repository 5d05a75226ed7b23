"""One DynamoDB client in a process of its own: it puts items, and measures its own CPU time.

`python dynamodb.py CLIENT URL REGION TABLE CALLERS`, with the Python of the client's environment.
Each line of stdin, `FIRST PUTS`, is one turn; each line of stdout is its time.
"""

import asyncio
import json
import logging
import os
import sys
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

BODY = b"x" * 200
KEYS = 200


def wire_item(n):
    from base64 import b64encode

    sort, body = b64encode(n.to_bytes(17, "big")).decode(), b64encode(BODY).decode()
    return {"p": {"S": f"key{n % KEYS}"}, "s": {"B": sort}, "b": {"B": body}}


def plain_item(n):
    return {"p": f"key{n % KEYS}", "s": n.to_bytes(17, "big"), "b": BODY}


async def heatsink(url, region, table, _):
    from heatsink.primitives.clock import SystemClock
    from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials

    client = DynamoClient(url, region, FixedCredentials(), SystemClock())

    async def put(n):
        await client.call("PutItem", {"TableName": table, "Item": wire_item(n)})

    return put


class Bare(asyncio.Protocol):
    """No timeouts, no TLS, no errors, no chunks: what an HTTP client cannot do without."""

    def connection_made(self, transport):
        self.transport = transport
        self.data = b""

    def data_received(self, data):
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if found:
            start = head.index(b"Content-Length: ") + 16
            if len(body) == int(head[start : head.index(b"\r\n", start)]):
                self.data = b""
                self.answer.set_result((int(head[9:12]), body))


async def bare(url, region, table, _):
    """The same signed requests as ours, on one bare connection for each caller."""
    from time import time

    import msgspec

    from heatsink.stores.dynamodb.wire.signing import Credentials, Signer

    loop, host = asyncio.get_running_loop(), url.partition("://")[2]
    signer, who, kept = Signer(region, host), Credentials("local", "local"), []
    name, _, port = host.partition(":")

    async def put(n):
        _, connection = kept.pop() if kept else await loop.create_connection(Bare, name, int(port))
        body = msgspec.json.encode({"TableName": table, "Item": wire_item(n)})
        connection.answer = loop.create_future()
        connection.transport.write(signer.request("PutItem", body, who, time()))
        status, answer = await connection.answer
        kept.append((None, connection))
        assert status == 200
        msgspec.json.decode(answer)

    return put


async def aiobotocore(url, region, table, callers):
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    key = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": region}
    config = AioConfig(max_pool_connections=callers)
    client = await (
        get_session().create_client("dynamodb", endpoint_url=url, config=config, **key).__aenter__()
    )

    async def put(n):
        item = {"p": {"S": f"key{n % KEYS}"}, "s": {"B": n.to_bytes(17, "big")}, "b": {"B": BODY}}
        await client.put_item(TableName=table, Item=item)

    return put


async def aiodynamo(url, region, table, _):
    from aiodynamo.client import Client
    from aiodynamo.credentials import Key, StaticCredentials
    from aiodynamo.http.aiohttp import AIOHTTP
    from aiohttp import ClientSession
    from yarl import URL

    session = ClientSession()
    who = StaticCredentials(Key("local", "local"))
    client = Client(AIOHTTP(session), who, region, URL(url))

    async def put(n):
        await client.put_item(table, plain_item(n))

    return put


async def pydynox(url, region, table, _):
    from pydynox import DynamoDBClient

    logging.disable()  # else it warns of calls that a busy machine slows down
    key = {"access_key": "local", "secret_key": "local"}
    client = DynamoDBClient(region=region, endpoint_url=url, **key)

    async def put(n):
        await client.put_item(table, plain_item(n))

    return put


def cpu_s():
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main(client, url, region, table, callers):
    put = await globals()[client](url, region, table, int(callers))

    async def put_each(share):
        for n in share:
            await put(n)

    for line in sys.stdin:
        first, puts = map(int, line.split())
        shares = [range(first + c, first + puts, int(callers)) for c in range(int(callers))]
        used_s, started_s = cpu_s(), perf_counter()
        await asyncio.gather(*map(put_each, shares))
        took = {"seconds": perf_counter() - started_s, "cpu_s": cpu_s() - used_s}
        print(json.dumps(took), flush=True)
    os._exit(0)  # without closing what some clients leave open, and complain about


asyncio.run(main(*sys.argv[1:]))
