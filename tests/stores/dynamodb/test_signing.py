"""Our signatures against botocore's, byte for byte."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import NoAccess
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.wire.signing import CONTENT_TYPE, Credentials, Signer

MOMENT_S = 1_800_000_123.4


def boto_headers(
    operation: str, body: bytes, credentials: Credentials, region: str, host: str, now_s: float
) -> dict[str, str]:
    moment = datetime.fromtimestamp(int(now_s), UTC)  # else it may round up
    request = AWSRequest("POST", f"https://{host}/", data=body)
    request.headers["Content-Type"] = CONTENT_TYPE
    request.headers["X-Amz-Target"] = f"DynamoDB_20120810.{operation}"
    boto = BotoCredentials(credentials.access_key, credentials.secret_key, credentials.token)
    with patch.object(auth, "get_current_datetime", lambda **_: moment):
        auth.SigV4Auth(boto, "dynamodb", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def our_headers(request: bytes, body: bytes, host: str) -> dict[str, str]:
    """The headers of a request, without those that botocore leaves to its HTTP client."""
    head, _, sent = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert first == "POST / HTTP/1.1"
    assert sent == body
    assert headers.pop("host") == host
    assert headers.pop("content-length") == str(len(body))
    return headers


@given(
    body=st.binary(max_size=300),
    token=st.none() | st.text("abc/+=", min_size=1),
    region=st.sampled_from(["eu-west-1", "us-east-1"]),
    now_s=st.floats(1.7e9, 1.9e9),
)
def test_headers_equal_botocores(body: bytes, token: str | None, region: str, now_s: float) -> None:
    credentials = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    host = f"dynamodb.{region}.amazonaws.com"
    request = Signer(region, host).request("PutItem", body, credentials, now_s)
    assert our_headers(request, body, host) == boto_headers(
        "PutItem", body, credentials, region, host, now_s
    )


def test_a_signer_notices_whatever_differs_from_the_request_before() -> None:
    signer, host = Signer("eu-west-1", "localhost:8000"), "localhost:8000"
    old, new = Credentials("A", "secret of A"), Credentials("B", "secret of B", "token")
    for operation, body, credentials, later_s in [
        ("Query", b"{}", old, 0.0),
        ("Query", b"{1}", old, 0.5),
        ("Scan", b"{1}", old, 0.5),
        ("Query", b"{1}", old, 1.0),
        ("Query", b"{1}", new, 1.0),
        ("Query", b"{1}", new, 86_401.0),
        ("Query", b"{1}", new, 0.0),
    ]:
        now_s = MOMENT_S + later_s
        ours = our_headers(signer.request(operation, body, credentials, now_s), body, host)
        assert ours == boto_headers(operation, body, credentials, "eu-west-1", host, now_s)


@pytest.mark.parametrize(
    "credentials",
    [Credentials("AKID\r\nX: y", "secret"), Credentials("AKID", "secret", "token\n")],
)
def test_credentials_cannot_add_a_header(credentials: Credentials) -> None:
    with pytest.raises(NoAccess, match="line break"):
        Signer("eu-west-1", "localhost").request("Query", b"{}", credentials, MOMENT_S)


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("https://vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com:443", None),
        ("https://DynamoDB.eu-west-1.amazonaws.com/", "dynamodb.eu-west-1.amazonaws.com"),
        ("http://127.0.0.1:80", "127.0.0.1"),
        ("http://127.0.0.1:443", "127.0.0.1:443"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_the_host_is_signed_as_it_is_sent(endpoint: str, host: str | None) -> None:
    """As browsers do: in small letters, and without the usual port."""
    expected = host or "vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com"
    assert parse("messages", {"endpoint": endpoint}).endpoint.split("://")[1] == expected


@pytest.mark.parametrize("secret", ["hunter2hunter2"])
def test_secrets_do_not_show(secret: str) -> None:
    assert secret not in repr(Credentials("AKIDEXAMPLE", secret, secret))
