"""A thin DynamoDB client: signed JSON over persistent connections, credentials, and typed errors.

botocore builds, validates and parses each request in Python. A put through this client takes a
twentieth of the CPU time of aiobotocore (`./dev bench dynamodb_client`). This client repeats a
request only if it is a read whose connection turned out to be closed. All other retries are made by
callers (`spread.backoff`).

The type of an error says what helps: waiting (`Unavailable`), more buckets (`Throttled`), or an
operator (`Misconfigured`, `NoAccess`, `InvalidSetting`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from heatsink.errors import (
    Closed,
    HeatsinkError,
    InvalidSetting,
    Misconfigured,
    NoAccess,
    NoTable,
    TableExists,
    Throttled,
    Unavailable,
)
from heatsink.primitives.clock import Clock, now_ms
from heatsink.primitives.cut import Cut
from heatsink.primitives.words import pip_install

from .connections import CONNECT_S, CannotConnect, NotHttp, Pool, WireAnswer
from .wire.signing import API, STREAMS_API, Credentials, Signer

CONNECTIONS_MAX = 256
TIMEOUT_S = 5.0
TEXT_MAX = 1_000  # characters of DynamoDB's own words in an error
STORE = "the DynamoDB store"
BROKEN = (OSError, asyncio.CancelledError)
encode = msgspec.json.encode
decode = msgspec.json.Decoder(dict[str, Any]).decode
Item = dict[str, Any]
THROTTLING = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TransactionInProgressException",
    "TransactionConflictException",
}
CREDENTIALS = {
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "MissingAuthenticationTokenException",
    "MissingAuthenticationToken",
    "ExpiredTokenException",
    "RequestExpired",
    "AccessDeniedException",
    "NotAuthorized",
    "OptInRequired",
}
REPEATABLE = {"GetItem", "Query", "Scan", "TransactGetItems", "DescribeTable", "ListTables"}
WRONG_REQUESTS = {"ValidationException", "SerializationException"}
ASK_EVERY_S = 60.0
LOCAL = Credentials("local", "local")


class Result(NamedTuple):
    """The body of DynamoDB's response, and DynamoDB's time when it responded.

    The time is from the header Date, so it is in whole seconds.
    """

    body: dict[str, Any]
    store_ms: int


class Turns:
    """Limits concurrent calls, first come, first served.

    If a call times out while it waits for its turn, the error says so.

        await turns.take()
        try:
            …
        finally:
            turns.give_back()
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def locked(self) -> bool:
        return not self._free

    def take_if_free(self) -> bool:
        """Take a turn if no caller is waiting. Returns whether the turn was taken."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Wait for a turn and take it."""
        if self.take_if_free():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError as cut:
            cut.add_note(
                f"the call timed out while it waited for a connection: this process makes "
                f"{len(self._waiting) + self._most:,} calls to DynamoDB at once, the limit is "
                f"{self._most:,}; make fewer at once, or start more processes"
            )
            if waiter.cancelled():
                self._waiting.remove(waiter)
            else:  # the turn came together with the cancellation
                self.give_back()
            raise

    def give_back(self) -> None:
        """Give the turn to the call that waits for the longest, or keep it free."""
        for waiter in self._waiting:
            if not waiter.done():
                self._waiting.remove(waiter)
                waiter.set_result(None)
                return
        self._free += 1


class DynamoClient:
    """Sends signed requests to one endpoint."""

    def __init__(
        self,
        endpoint: str,
        region: str,
        credentials: CredentialSource,
        clock: Clock,
        timeout_s: float = TIMEOUT_S,
        api: str = API,
    ) -> None:
        """`api` is the prefix of operation names: that of DynamoDB, or of DynamoDB Streams."""
        host = endpoint.split("://", 1)[1].rstrip("/")
        self.region = region
        self._url = endpoint.rstrip("/") + "/"
        self._signer = Signer(region, host, api)
        self.credentials = credentials
        self._clock = clock
        self._timeout_s = timeout_s
        self._monotonic_s = clock.monotonic_s
        late = f"did not answer within {timeout_s:g} s: check the network"
        calls = "how many calls this process makes at once"
        self._cut = Cut(clock, f"{self._url} {late} and {calls}, then retry")
        self.turns = Turns(CONNECTIONS_MAX)
        self._pool = Pool(endpoint)
        self._closed = False

    async def call(
        self,
        operation: str,
        payload: Item,
        turns: Turns | None = None,
        decode: Callable[[bytes], Any] = decode,
    ) -> Result:
        """Send one request and return its response.

        The module's docstring says which error means what. `turns` limits concurrent calls. A
        caller that must not wait behind all other calls passes a `Turns` of its own. `decode`
        decodes the body; it raises `ValueError` if the body is no JSON.
        """
        answer = await self.forward(operation, encode(payload), turns)
        if answer.status != 200:
            raise failure_of(operation, payload, answer.status, answer.body)
        try:
            return Result(decode(answer.body), self.time_of(answer))
        except (ValueError, RecursionError):
            raise self.not_dynamodb() from None

    async def forward(self, operation: str, body: bytes, turns: Turns | None = None) -> WireAnswer:
        """Send one request as it is, and return its answer, whatever its status.

        Raises `Unavailable` or `NoAccess` if there is no answer.
        """
        turns = turns or self.turns
        try:
            with self._cut(self._monotonic_s() + self._timeout_s):
                if not turns.take_if_free():
                    await turns.take()
                try:
                    return await self.post(operation, body, await self.credentials.get())
                finally:
                    turns.give_back()
        except BROKEN as error:
            raise self.explained(error) from None

    def in_time(self) -> Cut:
        """Return a context manager that cancels the request when its timeout has passed."""
        return self._cut(self._monotonic_s() + self._timeout_s)

    def post(self, operation: str, body: bytes, credentials: Credentials) -> Awaitable[WireAnswer]:
        """Sign a request and send it. The caller must have taken a turn.

        Raises the errors in `BROKEN`. If a kept connection turns out to be closed, a request that
        may be repeated is sent again.
        """
        if self._closed:
            raise Closed.meanwhile(STORE)
        request = self._signer.request(operation, body, credentials, self._clock.now_s())
        return self._pool.ask(request, operation in REPEATABLE)

    def explained(self, error: BaseException) -> BaseException:
        """Convert the error of a failed request to the Heatsink error that explains it.

        A cancellation by the caller is returned unchanged.
        """
        if isinstance(error, asyncio.CancelledError) and (_is_cancelled() or not self._closed):
            return error  # otherwise the pool cancelled the call, because it was closed
        if self._closed:
            return Closed.meanwhile(STORE)
        if isinstance(error, TimeoutError):
            return Unavailable(
                f"cannot connect to {self._url} within {CONNECT_S:g} s: check the network and retry"
            )
        if isinstance(error, CannotConnect):
            return self._unreached(error.reason)
        if isinstance(error, NotHttp):
            return self.not_dynamodb()
        said = str(error).partition("\n")[0] or type(error).__name__
        return Unavailable(f"the connection to DynamoDB at {self._url} broke ({said}): retry")

    def _unreached(self, reason: Exception) -> HeatsinkError:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return NoAccess(
                f"{self._url} shows a certificate that is not trusted ({reason.verify_message}): "
                "check endpoint= in the url, or set the environment variable SSL_CERT_FILE to the "
                "PEM file of the certificate's authority"
            )
        return Unavailable(
            f"cannot connect to DynamoDB at {self._url}: {reason}; check region= and endpoint= in "
            "the url"
        )

    def not_dynamodb(self) -> Unavailable:
        """Return the error for a response that is not DynamoDB's."""
        return Unavailable(f"the server at {self._url} is not DynamoDB: check endpoint= in the url")

    def time_of(self, answer: WireAnswer) -> int:
        """Return when the server answered, in milliseconds.

        This is the answer's header Date. If the header is missing, it is the time of this process's
        clock.
        """
        try:
            return milliseconds_of(answer.date)
        except ValueError:
            return now_ms(self._clock)

    def of_streams(self) -> DynamoClient:
        """Return a client of DynamoDB Streams with the same credentials."""
        endpoint = streams_endpoint(self._url.rstrip("/"))
        return DynamoClient(
            endpoint, self.region, self.credentials, self._clock, self._timeout_s, STREAMS_API
        )

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()


def streams_endpoint(endpoint: str) -> str:
    """Return where DynamoDB Streams is: on AWS a host of its own, elsewhere the same server."""
    scheme, host = endpoint.split("://", 1)
    is_aws = host.startswith("dynamodb") and (".amazonaws.com" in host or host.endswith(".api.aws"))
    return f"{scheme}://streams.{host}" if is_aws else endpoint


@lru_cache(maxsize=16)
def milliseconds_of(date: bytes) -> int:
    return int(parsedate_to_datetime(date.decode("latin-1")).timestamp() * 1000)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class TableThrottled(Throttled):
    """The table or the account is over its limit. More buckets would not help."""

    def __init__(self, reason: str) -> None:
        super().__init__("", f"{reason}: raise the table's or account's limit in AWS")


class ConditionFailed(HeatsinkError):
    """The condition of a write was not met.

    `codes` are the reasons and `items` the stored items: one for each action of a transaction, in
    order, or one for a single write.
    """

    def __init__(self, codes: list[str], items: list[dict[str, Any] | None]) -> None:
        super().__init__(", ".join(codes))
        self.codes = codes
        self.items = items


class DynamoFailure(msgspec.Struct):
    """The body of an error response."""

    type_: str = msgspec.field(name="__type", default="")
    message: str | None = None
    Message: str | None = None
    Item: dict[str, Any] | None = None
    CancellationReasons: list[dict[str, Any]] = []
    ThrottlingReasons: list[dict[str, Any]] = []
    throttlingReasons: list[dict[str, Any]] = []  # noqa: N815 (its name for on-demand tables)

    @property
    def code(self) -> str:
        return self.type_.rsplit("#", 1)[-1]

    @property
    def text(self) -> str:
        """What DynamoDB says, in one line."""
        said = (self.message or self.Message or self.code)[:TEXT_MAX]
        return "".join(each if each.isprintable() else " " for each in said)


def failure_of(
    operation: str, payload: dict[str, Any], status: int, answer: bytes
) -> HeatsinkError:
    try:
        failure = msgspec.json.decode(answer, type=DynamoFailure)
    except (ValueError, RecursionError):
        failure = DynamoFailure()
    if not failure.code.isalnum():
        return Unavailable(
            f"{operation} got a response that is not DynamoDB's (status {status}): "
            "check endpoint= in the url, or retry"
        )
    if failure.code == "ConditionalCheckFailedException":
        return ConditionFailed([failure.code], [failure.Item])
    if failure.code == "TransactionCanceledException":
        return _cancelled(failure, payload)
    if failure.code in THROTTLING:
        return _throttled(failure, _partition_of(payload))
    if status >= 500:
        return Unavailable(f"DynamoDB failed ({failure.code}: {failure.text}): retry")
    return _operator_error(failure, payload)


def _cancelled(failure: DynamoFailure, payload: dict[str, Any]) -> HeatsinkError:
    codes = [reason.get("Code", "None") for reason in failure.CancellationReasons]
    if "ConditionalCheckFailed" in codes:
        return ConditionFailed(codes, [r.get("Item") for r in failure.CancellationReasons])
    for place, code in enumerate(codes):
        if code in ("TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"):
            return Throttled(_partition_of(payload, place))
    return InvalidSetting(f"DynamoDB refused a transaction: {failure.text}")


def _throttled(failure: DynamoFailure, partition: str) -> HeatsinkError:
    """Return the error for a throttled request.

    Returns `Throttled` if a partition is over its limit, which more buckets cure, and
    `TableThrottled` otherwise. If DynamoDB gave no reason, returns `Throttled`.
    """
    reasons = [
        str(reason.get("reason", ""))
        for reason in failure.ThrottlingReasons + failure.throttlingReasons
    ]
    if reasons and not any("KeyRange" in reason for reason in reasons):
        return TableThrottled(", ".join(reasons))
    return Throttled(partition)


def _partition_of(payload: dict[str, Any], place: int = 0) -> str:
    """Return the partition key of a request, for error messages.

    In a transaction, `place` is the position of the action.
    """
    if "TransactItems" in payload:
        (payload,) = payload["TransactItems"][place].values()
    values = payload.get("ExpressionAttributeValues", {})
    key = payload.get("Key") or payload.get("Item") or {"p": values.get(":p", {})}
    return str(key.get("p", {}).get("S", ""))


def _operator_error(failure: DynamoFailure, payload: dict[str, Any]) -> HeatsinkError:
    table = payload.get("TableName", "")
    if failure.code == "ResourceNotFoundException":
        return NoTable(
            f"there is no DynamoDB table {table!r} in this region: check table and region in the "
            "url, or create the table with heatsink table create"
        )
    if failure.code in CREDENTIALS:
        return NoAccess(
            f"DynamoDB refused the credentials ({failure.code}: {failure.text}): check the AWS_… "
            "variables, profile= in the url, the role and its permissions"
        )
    return _kind(failure.code)(f"DynamoDB refused the request ({failure.code}): {failure.text}")


def _kind(code: str) -> type[InvalidSetting]:
    if code in WRONG_REQUESTS:
        return InvalidSetting
    return TableExists if code == "ResourceInUseException" else Misconfigured


class CredentialSource(Protocol):
    async def get(self) -> Credentials: ...


class FixedCredentials:
    """Constant credentials, for emulators on this machine, which accept any credentials."""

    async def get(self) -> Credentials:
        return LOCAL


class ChainCredentials:
    """The credentials that botocore finds: environment, profile, container, role, web identity.

    botocore renews credentials some minutes before they expire, but only when it is called. So this
    class calls botocore at most once a minute, when a request needs credentials. The call runs in a
    thread, since it may wait for the network. During the call, requests use the previous
    credentials and do not wait.
    """

    def __init__(self, clock: Clock, profile: str | None = None) -> None:
        self._clock = clock
        self._chain = _find_chain(profile)
        self._current: Credentials | None = None
        self._asked_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def get(self) -> Credentials:
        if self._clock.monotonic_s() - self._asked_s >= ASK_EVERY_S:
            self._ask_beside()
        if self._current is None and self._asking is not None:
            await asyncio.shield(self._asking)
        if self._current is None:
            raise Unavailable("AWS credentials are not loaded yet: retry")
        return self._current

    def _ask_beside(self) -> None:
        """Start to load the credentials in the background, unless they are already being loaded."""
        if self._asking is None or self._asking.done():
            self._asked_s = self._clock.monotonic_s()
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(_retrieve)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            frozen = await loop.run_in_executor(None, self._chain.get_frozen_credentials)
        except Exception as error:  # providers raise anything; the last credentials may still work
            if self._current is None:
                self._asked_s = float("-inf")
                raise Unavailable(f"cannot load AWS credentials ({error}): retry") from error
            return
        self._current = Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the task's error, so that asyncio does not log it if all waiters were cancelled."""
    if not task.cancelled():
        task.exception()


def _find_chain(profile: str | None) -> Any:
    try:
        from botocore.exceptions import BotoCoreError, ProfileNotFound
        from botocore.session import Session
    except ImportError:
        raise Misconfigured(f"DynamoDB needs botocore: {pip_install('aws')}") from None
    try:
        chain = Session(profile=profile).get_credentials()
    except ProfileNotFound as error:
        raise InvalidSetting(f"{error}: check profile= in the url and AWS_PROFILE") from None
    except BotoCoreError as error:  # an incomplete pair, a file that cannot be parsed
        raise NoAccess(
            f"AWS credentials cannot be read ({error}): check the AWS_… variables and files"
        ) from None
    if chain is None:
        raise NoAccess(
            "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "name a profile with ?profile= in the url, or run with a role"
        )
    return chain
