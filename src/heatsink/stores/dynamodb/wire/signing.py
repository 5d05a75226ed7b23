"""AWS Signature Version 4 for DynamoDB's JSON requests.

Requests of the same operation within the same second differ only in their bodies. So all other
signed parts are hashed once a second, and each request continues copies of these hashes. This
includes the two hashes of the HMAC: with OpenSSL 3, one call for the whole HMAC takes more CPU than
all of this. Tests compare the result byte for byte with botocore's signer.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Any

import msgspec

from heatsink.errors import NoAccess

ALGORITHM = "AWS4-HMAC-SHA256"
CONTENT_TYPE = "application/x-amz-json-1.0"
SERVICE = "dynamodb"
API, STREAMS_API = "DynamoDB_20120810.", "DynamoDBStreams_20120810."
VALID_S = 900.0
_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=(?P<key>[^/]+)/(?P<scope>\d{{8}}/[^/]+/[^/]+/aws4_request), ?"
    r"SignedHeaders=(?P<signed>[^, ]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
VALUE = re.compile(r"[^\x00-\x1f\x7f]*")
HMAC_BLOCK = 64  # bytes, of HMAC with SHA-256 (RFC 2104)
INNER, OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
Hash = Any  # hashlib names no type for its objects


class Credentials(msgspec.Struct, frozen=True):
    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key[:4]}…)"


class Seal(msgspec.Struct, frozen=True):
    """What the signatures of one operation have in common for one second.

    A further request in this second needs only the digests of its own body. `request` is the hash
    of the canonical request up to the body's digest. `inner` and `outer` are the two hashes of the
    HMAC, which begin with the signing key.
    """

    second: int
    credentials: Credentials
    head: bytes
    request: Hash
    inner: Hash
    outer: Hash

    def sealed(self, body: bytes) -> bytes:
        request, inner, outer = self.request.copy(), self.inner.copy(), self.outer.copy()
        request.update(sha256(body).hexdigest().encode())
        inner.update(request.hexdigest().encode())
        outer.update(inner.digest())
        signature = outer.hexdigest().encode()
        return b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (self.head, signature, len(body), body)


class Signer:
    def __init__(self, region: str, host: str, api: str = API) -> None:
        self._region = region
        self._host = host
        self._api = api
        self._seals: dict[str, Seal] = {}

    def request(self, operation: str, body: bytes, credentials: Credentials, now_s: float) -> bytes:
        """Return a signed HTTP/1.1 request, with its head and its body.

        Raises `NoAccess` if the credentials contain a character that is not allowed in a header.
        """
        seal = self._seals.get(operation)
        if seal is None or seal.second != int(now_s) or seal.credentials is not credentials:
            seal = self._seals[operation] = self._seal(operation, credentials, int(now_s))
        return seal.sealed(body)

    def _seal(self, operation: str, credentials: Credentials, second: int) -> Seal:
        stamp = datetime.fromtimestamp(second, UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {
            "content-type": CONTENT_TYPE,
            "host": self._host,
            "x-amz-date": stamp,
            "x-amz-target": f"{self._api}{operation}",
        }
        if credentials.token:
            headers["x-amz-security-token"] = credentials.token
        who = credentials.access_key
        if not all(map(VALUE.fullmatch, [*headers.values(), who])):
            raise NoAccess("the AWS credentials contain a line break or another control character")
        names = sorted(headers)
        signed = ";".join(names)
        lines = "".join(f"{name}:{headers[name]}\n" for name in names)
        scope = f"{stamp[:8]}/{self._region}/{SERVICE}/aws4_request"
        sent = "".join(f"{name}: {headers[name]}\r\n" for name in names)
        authorization = f"{ALGORITHM} Credential={who}/{scope}, SignedHeaders={signed}, Signature="
        key = _signing_key(credentials.secret_key, scope).ljust(HMAC_BLOCK, b"\0")
        return Seal(
            second,
            credentials,
            f"POST / HTTP/1.1\r\n{sent}authorization: {authorization}".encode(),
            sha256(f"POST\n/\n\n{lines}\n{signed}\n".encode()),
            sha256(key.translate(INNER) + f"{ALGORITHM}\n{stamp}\n{scope}\n".encode()),
            sha256(key.translate(OUTER)),
        )


def _signing_key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac_digest(key, part.encode(), "sha256")
    return key


class SignedRequest(msgspec.Struct, frozen=True):
    """An HTTP request as it came. The names of its headers are in lower case."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


class Claim(msgspec.Struct, frozen=True):
    """What the header Authorization of a request says about its signature.

    `access_key` is the signer. `scope` is the date, the region and the service. The signature
    covers `headers`.
    """

    access_key: str
    scope: tuple[str, ...]
    headers: frozenset[str]


def claim_of(request: SignedRequest) -> Claim | None:
    """Return what the request says about its signature; None without a signature of Version 4.

    The signature itself is not verified: see `is_signed_with`.
    """
    found = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
    if found is None:
        return None
    scope = tuple(found["scope"].split("/")[:3])
    return Claim(found["key"], scope, frozenset(found["signed"].split(";")))


def is_signed_with(secret: str, request: SignedRequest, now_s: float) -> bool:
    """Return whether the request has a valid signature that was made with this secret key.

    The signature may be at most 15 minutes old.
    """
    headers = request.headers
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    stamp = headers.get("x-amz-date", "")
    if found is None or not _is_recent(stamp, now_s):
        return False
    digest = sha256(request.body).hexdigest()
    said = headers.get("x-amz-content-sha256", digest)
    if said not in (digest, "UNSIGNED-PAYLOAD"):
        return False
    scope, signed = found["scope"], found["signed"]
    path, _, query = request.url.partition("?")
    query = "&".join(sorted(query.split("&")))
    lines = "".join(
        f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in signed.split(";")
    )
    canonical = f"{request.method}\n{path}\n{query}\n{lines}\n{signed}\n{said}".encode("latin-1")
    text = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(canonical).hexdigest()}".encode()
    made = hmac_digest(_signing_key(secret, scope), text, "sha256").hex()
    return compare_digest(made, found["signature"])


def _is_recent(stamp: str, now_s: float) -> bool:
    try:
        made = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(made.timestamp() - now_s) <= VALID_S
