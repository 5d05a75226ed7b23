"""The door where other machines can reach it: TLS, its own key pairs, and their scopes."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import trustme
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from click.testing import CliRunner

from heatsink.cli import main
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.processes import Served
from tests.server.door.conftest import a_door, client_of, make_table

KEY = {"room": {"S": "r"}, "at": {"S": "a"}}


class Open:
    """A door on all addresses, its certificate's authority and its file of key pairs."""

    def __init__(self, door: Served, folder: Path) -> None:
        self.url = f"https://localhost:{door.port}"
        self.port = door.port
        self.ca = folder / "ca.pem"
        self.keys = folder / "keys.json"

    def issue(self, *scopes: str) -> dict[str, Any]:
        flags = [flag for scope in scopes for flag in ("--scope", scope)]
        command = ["door", "keys", "new", "shop", *flags, "--keys", str(self.keys), "--json"]
        return dict(json.loads(CliRunner().invoke(main, command).stdout))

    def client(self, pair: dict[str, Any], service: str = "dynamodb") -> Any:
        return client_of(
            self.url,
            service,
            verify=str(self.ca),
            aws_access_key_id=pair["access_key"],
            aws_secret_access_key=pair["secret_key"],
        )

    def send(self, body: bytes, headers: dict[str, str]) -> str:
        context = ssl.create_default_context(cafile=self.ca)
        connection = HTTPSConnection("localhost", self.port, context=context)
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        found = json.loads(answer.read()).get("__type", f"{answer.status}")
        connection.close()
        return str(found).rpartition("#")[2]

    def signed(self, pair: dict[str, Any], body: bytes, operation: str = "GetItem") -> AWSRequest:
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
            "Host": f"localhost:{self.port}",
        }
        request = AWSRequest("POST", self.url, headers, body)
        who = Credentials(pair["access_key"], pair["secret_key"])
        SigV4Auth(who, "dynamodb", "us-east-1").add_auth(request)
        return request


@pytest.fixture(scope="module")
def opened(emulator: LocalDynamoDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    folder = tmp_path_factory.mktemp("open")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    make_table(emulator.client(), "other")
    tls = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--keys", "keys.json")
    with a_door(folder, emulator.url, "--host", "0.0.0.0", *tls) as door:  # noqa: S104
        yield Open(door, folder)


def code_of(call: Any, **parameters: Any) -> str:
    try:
        call(**parameters)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "accepted"


def test_a_key_pair_opens_the_tables_of_its_scopes(opened: Open) -> None:
    reader = opened.client(opened.issue("plain:read"))
    writer = opened.client(opened.issue("plain", "other:read"))
    master = opened.client(opened.issue("*:admin"))
    put = {"TableName": "plain", "Item": KEY}
    assert code_of(reader.get_item, TableName="plain", Key=KEY) == "accepted"
    assert code_of(reader.put_item, **put) == "AccessDeniedException"
    assert code_of(reader.get_item, TableName="other", Key=KEY) == "AccessDeniedException"
    assert code_of(reader.list_tables) == "AccessDeniedException"
    assert code_of(writer.put_item, **put) == "accepted"
    both = {"RequestItems": {name: {"Keys": [KEY]} for name in ("plain", "other")}}
    assert code_of(writer.batch_get_item, **both) == "accepted"
    assert code_of(reader.batch_get_item, **both) == "AccessDeniedException"
    mixed = [{"Put": put}, {"Put": {"TableName": "other", "Item": KEY}}]
    assert code_of(writer.transact_write_items, TransactItems=mixed) == "AccessDeniedException"
    assert code_of(writer.delete_table, TableName="plain") == "AccessDeniedException"
    arn = master.describe_table(TableName="other")["Table"]["TableArn"]
    assert code_of(reader.get_item, TableName=arn, Key=KEY) == "AccessDeniedException"
    assert code_of(master.list_tables) == "accepted"
    statement = {"Statement": "SELECT * FROM plain"}
    assert code_of(reader.execute_statement, **statement) == "AccessDeniedException"


def test_a_scope_covers_the_stream_of_its_table(opened: Open, emulator: LocalDynamoDB) -> None:
    client = emulator.client()
    stream = {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
    client.update_table(TableName="plain", StreamSpecification=stream)
    arn = client.describe_table(TableName="plain")["Table"]["LatestStreamArn"]
    for scope, said in (("plain:read", "accepted"), ("other", "AccessDeniedException")):
        streams = opened.client(opened.issue(scope), "dynamodbstreams")
        assert code_of(streams.describe_stream, StreamArn=arn) == said
        assert code_of(streams.list_streams, TableName="plain") == said
        assert code_of(streams.list_streams) == "AccessDeniedException"


def test_a_revoked_pair_is_refused_at_once(opened: Open) -> None:
    pair = opened.issue("plain")
    client = opened.client(pair)
    assert code_of(client.get_item, TableName="plain", Key=KEY) == "accepted"
    command = ["door", "keys", "revoke", pair["access_key"], "--keys", str(opened.keys)]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert code_of(client.get_item, TableName="plain", Key=KEY) == "UnrecognizedClientException"
    listed = CliRunner().invoke(main, ["door", "keys", "list", "--keys", str(opened.keys)])
    assert pair["access_key"] not in listed.stdout
    assert pair["secret_key"] not in listed.stdout


def test_aws_credentials_and_wrong_secrets_are_refused(opened: Open) -> None:
    pair = opened.issue("plain")
    theirs = {"access_key": "AKIAIOSFODNN7EXAMPLE", "secret_key": "x"}
    get = {"TableName": "plain", "Key": KEY}
    assert code_of(opened.client(theirs).get_item, **get) == "UnrecognizedClientException"
    wrong = opened.client({**pair, "secret_key": "x"})
    assert code_of(wrong.get_item, **get) == "InvalidSignatureException"


def test_requests_that_were_changed_or_are_not_wholly_signed_are_refused(opened: Open) -> None:
    body = json.dumps({"TableName": "plain", "Key": KEY}).encode()
    pair = opened.issue("plain")
    request = opened.signed(pair, body)
    headers = dict(request.headers)
    assert opened.send(body, headers) == "200"
    assert opened.send(body.replace(b'"r"', b'"s"'), headers) == "InvalidSignatureException"
    other = {**headers, "X-Amz-Target": "DynamoDB_20120810.DeleteItem"}
    assert opened.send(body, other) == "InvalidSignatureException"
    old = {**headers, "X-Amz-Date": "20200101T000000Z"}
    assert opened.send(body, old) == "InvalidSignatureException"
    bare = {name: value for name, value in headers.items() if name != "Authorization"}
    assert opened.send(body, bare) == "MissingAuthenticationTokenException"
    unsigned = {**headers, "X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}
    assert opened.send(body, unsigned) == "IncompleteSignatureException"
    fourth = headers["Authorization"].replace("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256")
    assert opened.send(body, {**headers, "Authorization": fourth}) == "IncompleteSignatureException"
    part = headers["Authorization"].replace(";x-amz-target", "")
    assert opened.send(body, {**headers, "Authorization": part}) == "IncompleteSignatureException"


def test_a_table_that_is_named_twice_does_not_get_around_the_scopes(
    opened: Open, emulator: LocalDynamoDB
) -> None:
    emulator.client().put_item(TableName="other", Item={**KEY, "secret": {"S": "x"}})
    key = json.dumps(KEY)
    pair = opened.issue("plain")
    for names in (("plain", "other"), ("other", "plain")):
        first, second = names
        body = f'{{"TableName":"{first}","Key":{key},"TableName":"{second}"}}'.encode()
        allowed = second == "plain"
        code = opened.send(body, dict(opened.signed(pair, body).headers))
        assert code == ("200" if allowed else "AccessDeniedException")


def test_health_needs_no_signature_and_metrics_are_not_there(opened: Open) -> None:
    context = ssl.create_default_context(cafile=opened.ca)
    statuses = []
    for path in ("/healthz", "/readyz", "/metrics"):
        connection = HTTPSConnection("localhost", opened.port, context=context)
        connection.request("GET", path)
        statuses.append(connection.getresponse().status)
        connection.close()
    assert statuses == [200, 200, 404]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "--tls-cert"),  # noqa: S104
        ([], "--region"),
        (["--region", "eu-west-1", "--tables", "x.toml"], "--store"),
        (["--region", "eu-west-1", "--tls-cert", "a.pem"], "belong together"),
        (["--region", "eu-west-1", "--limit", "nonsense=1"], "must be one of"),
    ],
)
def test_wrong_settings_are_refused(flags: list[str], said: str) -> None:
    region = ["--region", "eu-west-1"] if "--host" in flags else []
    result = CliRunner().invoke(main, ["door", *region, *flags])
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_file_of_pairs_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text("[]")
    file.chmod(0o644)
    result = CliRunner().invoke(main, ["door", "keys", "list", "--keys", str(file)])
    assert "chmod 600" in result.stderr
