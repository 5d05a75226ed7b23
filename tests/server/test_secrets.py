"""No command shows a password, on a screen, in JSON or in an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from heatsink.cli import main
from heatsink.primitives.checks import shown_url

SECRET = "hunter2"  # noqa: S105
URLS = [
    "redis://:hunter2@cache:6379/0",
    "redis://hunter2@cache",
    "rediss://ann:hunter2@cache?prefix=chat",
    "rediss://ann:a%2Fhunter2@cache",
    "rediss://ann:a/hunter2@cache",
    "rediss://ann:a@hunter2@cache",
    "rediss://ann:a?hunter2@cache",
    "rediss://ann:a#hunter2@cache",
    "redis+cluster://ann:hunter2@one,two",
    "redis+sentinel://ann:hunter2@one,two/service",
    "redis://ann:hunter2℀@cache",  # urlsplit shows what it cannot read
    "redis://ann:hunter2@[::1",
    "redis://cache?password=hunter2",
    "redis://cache?prefix=chat&Auth-Token=hunter2#x",
    "redis:/ann:hunter2@cache",
    "ann:hunter2@cache",
    "postgres://ann:hunter2@cache/chat",
    "dynamodb://ann:hunter2@messages?region=eu-west-1",
    "dynamodb://ann:a/hunter2@messages?region=eu-west-1",
    "dynamodb://messages?endpoint=http://ann:hunter2@127.0.0.1:1",
    "dynamodb://messages?region=eu-west-1&secret_key=hunter2",
    "dynamodb://messages?region=eu-west-1#hunter2@x",
]


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


def check(result: Result) -> None:
    told = result.output + repr(result.exception)
    assert SECRET not in "".join(told.split())
    assert result.exception is None or isinstance(result.exception, SystemExit), "no traceback"


@pytest.mark.parametrize("flag", ["--news", "--queue", "--store"])
@pytest.mark.parametrize("url", URLS)
def test_config_shows_no_password(
    flag: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    variable = {f"HEATSINK_SERVE_{flag[2:].upper()}": url}
    (tmp_path / "mine.toml").write_text(f"{flag[2:]} = {json.dumps(url, ensure_ascii=False)}\n")
    for result in (
        run("config", flag, url),
        run("config", "--json", flag, url),
        run("config", "--json", "--config", "mine.toml"),
        run("config", **variable),
    ):
        assert result.exit_code == 0
        check(result)


@pytest.mark.server("a command listens before it connects")
@pytest.mark.parametrize("url", URLS)
def test_an_error_about_a_url_shows_no_password(url: str, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    for command in (
        ("serve", "--port", "0", "--store", url, *data) if "redis" in url else ("fsck", url),
        ("doctor", "--json", "--store", url, "--queue", url, "--news", url),
        ("worker", "nowhere:actions", "--queue", url),
        ("coordinator", "--port", "0", "--store", "memory://", "--news", url),
        ("table", "create", url),
        ("adopt", url, "chat"),
        ("adopt", "memory://", url),
        ("hot", "--server", url),
        ("hot", "--server", url.replace("redis", "http")),
        ("bulk", "list", "--queue", "embedded", "--queue", url),
    ):
        check(run(*command))


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://ann:hunter2@cache:6379/0?prefix=a", "redis://…@cache:6379/0?prefix=a"),
        ("redis+cluster://:hunter2@one,two", "redis+cluster://…@one,two"),
        ("sqlite:////home/a@b/chat.db", "sqlite:////home/a@b/chat.db"),
        ("embedded:///a@b-queue", "embedded:///a@b-queue"),
        ("dynamodb://messages?region=eu-west-1", "dynamodb://messages?region=eu-west-1"),
        ("redis://cache?password=hunter2&prefix=a", "redis://cache?password=…&prefix=a"),
    ],
)
def test_what_is_no_secret_is_shown(url: str, masked: str) -> None:
    assert shown_url(url) == masked
