"""Who may use a door that other machines can reach: its own key pairs, with scopes per table.

Nobody but AWS can verify a signature that was made with AWS credentials. So the door issues key
pairs of its own. Applications use them as they use AWS credentials: as access key and secret key.
To check a signature, the door needs the secret itself. So the file that holds the pairs is as
secret as the pairs: only its owner may read the file.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from heatsink.door.core import names_in
from heatsink.door.keys import table_of
from heatsink.errors import InvalidSetting, NotFound
from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire.signing import (
    SERVICE,
    STREAMS_API,
    SignedRequest,
    claim_of,
    is_signed_with,
)

Level = Literal["read", "write", "admin"]
LEVELS = get_args(Level)
PREFIX = "HSDOOR"
ANY = "*"
SCOPE = re.compile(r"(?P<table>\*|[A-Za-z0-9_.-]{3,255})(?::(?P<level>read|write|admin))?")
SIGV4A = "AWS4-ECDSA-P256-SHA256"
COVERED = frozenset(("host", "x-amz-date", "x-amz-target"))
UNSIGNED = "UNSIGNED-PAYLOAD"
_DESCRIBING = ("DescribeTable", "DescribeTimeToLive", "DescribeContinuousBackups")
_STREAMS = ("ListStreams", "DescribeStream", "GetShardIterator", "GetRecords")
STREAMS = tuple(STREAMS_API + name for name in _STREAMS)
_READING = ("GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems")
READS = frozenset((*_READING, *_DESCRIBING, *STREAMS))
WRITES = frozenset(("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"))


class Refusal(NamedTuple):
    """Why a request is refused: the name of the error, and its message."""

    code: str
    message: str


class KeyPair(msgspec.Struct, frozen=True):
    """A key pair. `scopes` maps table names, or `*` for all, to read, write or admin."""

    access_key: str
    secret_key: str
    name: str
    scopes: dict[str, Level]
    made_s: int

    def allows(self, operation: str, tables: set[str]) -> bool:
        """Return whether the pair may call an operation on these tables.

        An operation that names no table needs a scope for all tables.
        """
        needed = LEVELS.index(level_of(operation))
        for table in tables or {ANY}:
            level = self.scopes.get(table) or self.scopes.get(ANY)
            if level is None or LEVELS.index(level) < needed:
                return False
        return True


def level_of(operation: str) -> Level:
    if operation in READS:
        return "read"
    return "write" if operation in WRITES else "admin"


def parse_scopes(texts: tuple[str, ...]) -> dict[str, Level]:
    """Parse scopes such as `chat:read`, `orders` (read and write) or `*:admin`."""
    scopes: dict[str, Level] = {}
    for text in texts:
        found = SCOPE.fullmatch(text)
        if found is None:
            raise InvalidSetting(
                f"scope {text!r} must be TABLE, TABLE:read, TABLE:write or TABLE:admin, where "
                "TABLE may be * for all tables",
                field="scope",
            )
        scopes[found["table"]] = found["level"] or "write"  # type: ignore[assignment]
    if not scopes:
        raise InvalidSetting("a key pair needs a scope: chat, chat:read or *:admin", field="scope")
    return scopes


class KeyFile:
    """The file of all key pairs. A door reads it again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._pairs: dict[str, KeyPair] = {}

    def pairs(self) -> dict[str, KeyPair]:
        """Return the pairs by their access keys.

        Raises `InvalidSetting` if the file cannot be read, or if other users can read it.
        """
        try:
            about = self._path.stat()
        except FileNotFoundError:
            self._seen, self._pairs = None, {}
            return self._pairs
        seen = (about.st_mtime_ns, about.st_ino)
        if seen != self._seen:
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise InvalidSetting(
                    f"other users can read the key pairs in {self._path}: chmod 600 {self._path}",
                    field="keys",
                )
            self._pairs, self._seen = self._read(), seen
        return self._pairs

    def _read(self) -> dict[str, KeyPair]:
        try:
            pairs = msgspec.json.decode(self._path.read_bytes(), type=list[KeyPair])
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise InvalidSetting(
                f"the key pairs in {self._path} cannot be read: {error}", field="keys"
            ) from None
        return {pair.access_key: pair for pair in pairs}

    def new(self, name: str, scopes: dict[str, Level], clock: Clock) -> KeyPair:
        """Issue a key pair and add it to the file."""
        access_key = PREFIX + token_hex(7).upper()
        pair = KeyPair(access_key, token_urlsafe(30), name, scopes, int(clock.now_s()))
        self._write([*self.pairs().values(), pair])
        return pair

    def revoke(self, access_key: str) -> None:
        """Remove a key pair. Doors refuse it from their next request on."""
        pairs = self.pairs()
        if access_key not in pairs:
            raise NotFound(
                f"{self._path} has no key pair {access_key!r}: see heatsink door keys list"
            )
        self._write([pair for pair in pairs.values() if pair.access_key != access_key])

    def _write(self, pairs: list[KeyPair]) -> None:
        """Replace the file in one step, so that a door never reads half of it."""
        beside = self._path.with_name(f".{self._path.name}.{token_hex(4)}")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(pairs), indent=2))
            beside.replace(self._path)
        except OSError as error:
            raise InvalidSetting(
                f"{self._path} cannot be written ({error.strerror}): name another file with --keys",
                field="keys",
            ) from None
        self._seen = None


class Guard:
    """Checks the signatures of requests, and what their key pairs allow."""

    def __init__(self, keys: KeyFile, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    def check(self, request: SignedRequest) -> KeyPair | Refusal:
        """Return the key pair that signed a request, or why the request is refused."""
        headers = request.headers
        authorization = headers.get("authorization", "")
        if not authorization:
            return Refusal(
                "MissingAuthenticationTokenException", "Request is missing Authentication Token"
            )
        if authorization.startswith(SIGV4A):
            return Refusal(
                "IncompleteSignatureException",
                "heatsink door does not take signatures of version 4A: sign with version 4, for "
                "one region",
            )
        claim = claim_of(request)
        if claim is None or claim.scope[2] != SERVICE:
            return Refusal(
                "IncompleteSignatureException",
                "the header Authorization has no AWS4-HMAC-SHA256 signature for dynamodb",
            )
        if not claim.headers >= COVERED or headers.get("x-amz-content-sha256") == UNSIGNED:
            return Refusal(
                "IncompleteSignatureException",
                "the signature must cover the body and the headers host, x-amz-date and "
                "x-amz-target",
            )
        pair = self._keys.pairs().get(claim.access_key)
        if pair is None:
            return Refusal(
                "UnrecognizedClientException",
                "The security token included in the request is invalid: use a key pair of "
                "heatsink door keys new",
            )
        is_its_day = headers.get("x-amz-date", "").startswith(claim.scope[0])
        if not is_its_day or not is_signed_with(pair.secret_key, request, self._clock.now_s()):
            return Refusal(
                "InvalidSignatureException",
                "The request signature we calculated does not match the signature you provided. "
                "Check the secret key of this door's key pair, and this machine's clock",
            )
        return pair


def denied(pair: KeyPair, operation: str, tables: set[str]) -> Refusal:
    where = f"on table {', '.join(sorted(tables))}" if tables else "on all tables"
    return Refusal(
        "AccessDeniedException",
        f"the key pair {pair.access_key} may not call {operation} {where}: heatsink door keys new "
        f"issues one with the scope {'TABLE' if tables else '*'}:{level_of(operation)}",
    )


class Named(msgspec.Struct):
    """The tables and streams that a request names. All other fields are skipped."""

    TableName: Any = None
    StreamArn: Any = None
    ShardIterator: Any = None
    RequestItems: dict[str, msgspec.Raw] | None = None
    TransactItems: list[dict[str, _OfTable]] | None = None


class _OfTable(msgspec.Struct):
    TableName: Any = None


_named = msgspec.json.Decoder(Named)


def tables_in(body: bytes) -> set[str]:
    """Return the names of the tables that a request names; empty if it names none."""
    try:
        found = _named.decode(body)
    except (msgspec.MsgspecError, ValueError):
        return _tables_in_odd(body)
    name, others = found.TableName, found.RequestItems or found.TransactItems
    if type(name) is str and (others or found.StreamArn or found.ShardIterator) is None:
        return {table_of(name)}  # as most requests
    names = [name, found.StreamArn, *(found.RequestItems or ())]
    for action in found.TransactItems or ():
        names += [one.TableName for one in action.values()]
    if str(found.ShardIterator).startswith("arn:"):  # as on AWS
        names.append(found.ShardIterator)
    return {table_of(name) for name in names if isinstance(name, str)}


def _tables_in_odd(body: bytes) -> set[str]:
    """Return the tables that a request names, if some of its fields have wrong types."""
    try:
        parameters = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return set()
    if not isinstance(parameters, dict):
        return set()
    return {table_of(name) for name in names_in(parameters)}
