"""A thin DynamoDB client: signed JSON over kept connections, with errors told apart.

botocore builds, validates and parses each request in Python and costs over a millisecond of CPU a
put; this costs a tenth of that. Retries are the caller's: `spread.backoff` has the budget.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import aiohttp
import msgspec

from heatsink.clock import Clock, now_ms
from heatsink.errors import Closed, Unavailable

from .credentials import CredentialSource
from .failures import failure_of
from .signing import Signer

CONNECTIONS_MAX = 256
CONNECT_S = 3.0
TIMEOUT_S = 5.0
encode = msgspec.json.encode
decode = msgspec.json.Decoder().decode
Item = dict[str, Any]


class Result(NamedTuple):
    """What DynamoDB answered, and its own time then (from HTTP's Date: whole seconds)."""

    body: dict[str, Any]
    store_ms: int


class DynamoClient:
    def __init__(
        self, endpoint: str, region: str, credentials: CredentialSource, clock: Clock
    ) -> None:
        host = endpoint.split("://", 1)[1].rstrip("/")
        self.region = region
        self._url = endpoint.rstrip("/") + "/"
        self._signer = Signer(region, host)
        self._credentials = credentials
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def call(self, operation: str, payload: Item) -> Result:
        """One request, one answer; a refusal raises the error that says what to do about it."""
        body = encode(payload)
        credentials = await self._credentials.get()
        headers = self._signer.headers(operation, body, credentials, self._clock.now_s())
        status, date, answer = await self._post(body, headers)
        if status == 200:
            return Result(decode(answer), self._time_of(date))
        raise failure_of(operation, payload, status, answer)

    async def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, str | None, bytes]:
        session = self._open_session()
        try:
            async with session.post(self._url, data=body, headers=headers) as response:
                return response.status, response.headers.get("Date"), await response.read()
        except TimeoutError:
            raise Unavailable(f"{self._url} did not answer within {TIMEOUT_S:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(
                f"cannot connect to DynamoDB at {self._url}: {error.os_error}; "
                "check region= and endpoint= in the url"
            ) from None
        except aiohttp.ClientError as error:
            raise Unavailable(f"the connection to DynamoDB broke: {error}") from None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise Closed("the DynamoDB store is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ttl_dns_cache=300),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, connect=CONNECT_S),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
            )
        return self._session

    def _time_of(self, date: str | None) -> int:
        if date is None:
            return now_ms(self._clock)
        return int(parsedate_to_datetime(date).timestamp() * 1000)

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()
