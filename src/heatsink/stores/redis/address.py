"""The address of a Redis (from a URL), the names of Heatsink's keys in it, and checks of TLS.

    redis://[user:password@]host[:port][/database]      rediss:// is the same with TLS
    redis+sentinel://[user:password@]host[:port],host/service-name
    redis+cluster://[user:password@]host[:port],host

Options after a `?`: prefix=chat (of all key names), timeout_s=0.25, ca=/path/to/ca.pem (TLS). Error
messages and `repr` never show the user or the password.
"""

from __future__ import annotations

import re
import ssl
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.validation import what_is_wrong

PREFIX = "heatsink"
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
Kind = Literal["standalone", "sentinel", "cluster"]
KINDS: dict[str, Kind] = {"": "standalone", "sentinel": "sentinel", "cluster": "cluster"}
PORTS: dict[Kind, int] = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}
EXAMPLES = (
    "redis://host:6379, rediss://user:password@host, redis+sentinel://host1,host2/service "
    "or redis+cluster://host1,host2"
)
TIMEOUT_S = 0.25
UNTRUSTED = re.compile(r"certificate verify failed: (.+?)\.? \(_ssl")
OTHER_NAME = "mismatch"
CURE_TRUST = "set ?ca= in the Redis URL to the PEM file of the certificate's authority"
CURE_NAME = "use the host that the certificate names in the Redis URL"


class RedisKeys(msgspec.Struct, frozen=True):
    """The names of all Redis keys of one deployment.

    Two deployments that share a Redis need different prefixes. The braces in a name are Redis
    Cluster's hash tag: all keys of a deployment are in one slot of the cluster. The keys hold only
    news and telemetry, a few megabytes. No name contains text from users.
    """

    prefix: str = PREFIX

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidSetting(
                "prefix must be 1 to 64 characters of A-Z a-z 0-9 _ . : -", field="prefix"
            )

    @property
    def heat(self) -> str:
        """The name of the stream of heat reports, one `Report` per entry."""
        return f"{{{self.prefix}}}:hot_partitions"

    @property
    def poison(self) -> str:
        """The name of the stream of heat reports that could not be processed, each with the reason.

        The length of the stream is limited.
        """
        return f"{{{self.prefix}}}:hot_partitions:poison"

    @property
    def hottest(self) -> str:
        """The name of the string that holds the fleet's heat, a `FleetHeat`.

        The leader writes the string once per window. The string expires soon afterwards.
        """
        return f"{{{self.prefix}}}:hottest"

    @property
    def pair(self) -> str:
        """The name of the string that holds the pair: "closed time|version|incarnation|MAC".

        Each SET replaces the whole string.
        """
        return f"{{{self.prefix}}}:registry:pair"

    def log(self, incarnation: str) -> str:
        """Return the name of the stream that carries the registry's log, as signed `LogEntry`s.

        The id of an entry in the stream is the entry's version. The stream expires when no leader
        has written to it for a while.
        """
        return f"{{{self.prefix}}}:registry:log:{incarnation}"

    @property
    def soft(self) -> str:
        """The name of the stream that carries soft decisions, one `SoftDecision` per entry.

        The stream's length is limited, so old entries are dropped. No decision is lost, because the
        leader periodically publishes all current soft decisions.
        """
        return f"{{{self.prefix}}}:soft"

    @property
    def news(self) -> str:
        """The name of the channel for new log entries of the registry and the closed time."""
        return f"{{{self.prefix}}}:news"

    @property
    def forgotten(self) -> str:
        """The name of the channel on which a process tells all others which keys to forget."""
        return f"{{{self.prefix}}}:forgotten"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S
    ca: str = ""

    def __post_init__(self) -> None:
        if not 0.01 <= self.timeout_s <= 10:
            raise InvalidSetting(
                f"timeout_s must be from 0.01 to 10, not {self.timeout_s}", field="timeout_s"
            )


class RedisAddress(msgspec.Struct, frozen=True):
    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    user: str
    password: str
    database: int
    service: str
    options: Options

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        """Return the hosts and ports, for messages, without user and password."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    def node(self, host: str, port: int) -> RedisAddress:
        """Return the address of one server of this cluster, with the same login and options."""
        return msgspec.structs.replace(self, kind="standalone", hosts=((host, port),), database=0)

    def patient(self, timeout_s: float) -> RedisAddress:
        options = msgspec.structs.replace(self.options, timeout_s=timeout_s)
        return msgspec.structs.replace(self, options=options)


def parse(url: str, name: str = "news", timeout_s: float = TIMEOUT_S) -> RedisAddress:
    """Parse a Redis URL. Raises `InvalidSetting`.

    `name` is the name of the setting that holds the URL, for messages. `timeout_s` is the timeout
    if the URL has none.
    """
    if not isinstance(url, str):
        raise InvalidSetting(
            f"{name} must be a URL like {EXAMPLES}, not {type(url).__name__}", field=name
        )
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may contain the password
        raise InvalidSetting(f"{name} must be a URL like {EXAMPLES}", field=name) from None
    scheme, _, variant = parts.scheme.partition("+")
    if scheme not in ("redis", "rediss") or variant not in KINDS or parts.fragment:
        raise InvalidSetting(f"{name} must be a URL like {EXAMPLES}", field=name)
    if not url.partition(":")[2].startswith("//"):
        raise InvalidSetting(f"{name} needs two slashes: use {EXAMPLES}", field=name)
    kind = KINDS[variant]
    secret, _, hosts = parts.netloc.rpartition("@")
    user, _, password = secret.partition(":")
    database, service = _path(parts, kind, name)
    return RedisAddress(
        kind=kind,
        tls=scheme == "rediss",
        hosts=tuple(_host(host, PORTS[kind], name) for host in hosts.split(",")),
        user=unquote(user),
        password=unquote(password),
        database=database,
        service=service,
        options=_options(parts.query, name, timeout_s),
    )


def _host(text: str, port: int, name: str) -> tuple[str, int]:
    host, colon, number = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, number = text, str(port)
    if not host or not number.isdecimal() or not 0 < int(number) < 65_536:
        raise InvalidSetting(f"{name} names no host or a wrong port: use {EXAMPLES}", field=name)
    return host.strip("[]"), int(number)


def _path(parts: SplitResult, kind: Kind, name: str) -> tuple[int, str]:
    path = parts.path.strip("/")
    if kind == "sentinel":
        if not path or "/" in path:
            raise InvalidSetting(
                f"{name} must name Sentinel's service: redis+sentinel://host/service", field=name
            )
        return 0, unquote(path)
    if path and kind == "cluster":
        raise InvalidSetting(
            f"{name} has a path, {path!r}, but a cluster has no databases: leave it out", field=name
        )
    if path and not path.isdecimal():
        raise InvalidSetting(f"the path of {name} must be a database number: use {EXAMPLES}")
    return int(path or 0), ""


def _options(query: str, name: str, timeout_s: float) -> Options:
    pairs = parse_qsl(query)
    named = dict(pairs)
    if len(named) < len(pairs):
        raise InvalidSetting(
            f"{name} has the same option twice after the ?: name each option once", field=name
        )
    try:
        return msgspec.convert({"timeout_s": timeout_s, **named}, Options, strict=False)
    except msgspec.ValidationError as error:
        _, words = what_is_wrong(error, Options)
        raise InvalidSetting(
            f"{name} has an unknown or invalid option: {words}", field=name
        ) from None


def check_authority(address: RedisAddress) -> None:
    """Raise `InvalidSetting` if the file in the option `ca` cannot be used.

    Without this check, a missing file would later look like an outage of Redis.
    """
    ca = address.options.ca
    if not ca:
        return
    if not address.tls:
        raise InvalidSetting(
            "ca= in a Redis URL needs TLS: begin the URL with rediss://", field="ca"
        )
    try:
        ssl.create_default_context(cafile=ca)
    except OSError as error:
        reason = "it holds no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidSetting(
            f"ca in a Redis URL, {ca!r}, cannot be used ({reason}): name a file in PEM format",
            field="ca",
        ) from None


def distrust(error: Exception) -> str | None:
    """If `error` says that a certificate was refused, return the reason and the cure.

    Returns None for any other error. The reason is read from the error's text, since some drivers
    do not keep the original error.
    """
    found = UNTRUSTED.search(str(error))
    if found is None:
        return None
    cure = CURE_NAME if OTHER_NAME in found[1] else CURE_TRUST
    return f"shows a certificate that is not trusted ({found[1]}): {cure}"
