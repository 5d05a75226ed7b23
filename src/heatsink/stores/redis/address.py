"""The address of a Redis (from a URL), the names of Heatsink's keys in it, and checks of TLS.

    redis://[user:password@]host[:port][/database]      rediss:// is the same with TLS
    redis+sentinel://[user:password@]host[:port],host/service-name
    redis+cluster://[user:password@]host[:port],host

Options after a `?`: prefix=chat (of all keys), timeout_s=0.25, ca=/path/to/ca.pem (TLS). Error
messages and `repr` never show user or password.
"""

from __future__ import annotations

import re
import ssl
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from heatsink.errors import InvalidSetting

PREFIX = "heatsink"
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
GROUP = "coordinators"
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
    """All Redis keys of one deployment, with their types.

    Two deployments on one Redis need two prefixes. The braces are Redis Cluster's hash tag: all
    keys of a deployment are in one slot. They hold only news and telemetry, a few megabytes. Text
    from users is never part of a key's name.
    """

    prefix: str = PREFIX

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidSetting(
                "prefix must be 1 to 64 characters of A-Z a-z 0-9 _ . : -", field="prefix"
            )

    @property
    def heat(self) -> str:
        """Stream: a `Report` each. Read by the group `GROUP`."""
        return f"{{{self.prefix}}}:hot_partitions"

    @property
    def poison(self) -> str:
        """Stream: entries of `heat` that could not be decoded, with the reason. Capped."""
        return f"{{{self.prefix}}}:hot_partitions:poison"

    @property
    def hottest(self) -> str:
        """String: a `FleetHeat`, which the leader writes once a window. Expires soon after."""
        return f"{{{self.prefix}}}:hottest"

    @property
    def pair(self) -> str:
        """String: "closed time|version|incarnation|MAC", always replaced as a whole by one SET."""
        return f"{{{self.prefix}}}:registry:pair"

    def log(self, incarnation: str) -> str:
        """Stream: signed `LogEntry`s whose ids are their versions. Expires if no longer written."""
        return f"{{{self.prefix}}}:registry:log:{incarnation}"

    @property
    def soft(self) -> str:
        """Stream: one `SoftDecision` each. Capped; the leader publishes all of them regularly."""
        return f"{{{self.prefix}}}:soft"

    @property
    def forgotten(self) -> str:
        """Channel: keys that a process has forgotten, so that all others drop them too."""
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
        """Hosts and ports, for messages: without user and password."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    def node(self, host: str, port: int) -> RedisAddress:
        """The address of one of its servers alone."""
        return msgspec.structs.replace(self, kind="standalone", hosts=((host, port),), database=0)

    def patient(self, timeout_s: float) -> RedisAddress:
        options = msgspec.structs.replace(self.options, timeout_s=timeout_s)
        return msgspec.structs.replace(self, options=options)


def parse(url: str, name: str = "news", timeout_s: float = TIMEOUT_S) -> RedisAddress:
    """Parse a Redis URL. Raises `InvalidSetting`.

    `name` is the setting that the URL came from. `timeout_s` applies if the URL does not set it.
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
        raise InvalidSetting(f"{name} lacks its two slashes: {EXAMPLES}", field=name)
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
    if path and (kind == "cluster" or not path.isdecimal()):
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
        takes = ", ".join(Options.__struct_fields__)
        raise InvalidSetting(
            f"{name} takes the options {takes} after the ?: {error}", field=name
        ) from None


def check_authority(address: RedisAddress) -> None:
    """Check that the `ca` file can be used. Later, a missing file would look like an outage."""
    ca = address.options.ca
    if not ca:
        return
    if not address.tls:
        raise InvalidSetting("ca in a Redis URL needs TLS: begin the URL with rediss", field="ca")
    try:
        ssl.create_default_context(cafile=ca)
    except OSError as error:
        reason = "it holds no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidSetting(
            f"ca in a Redis URL, {ca!r}, cannot be used ({reason}): name a file in PEM format",
            field="ca",
        ) from None


def distrust(error: Exception) -> str | None:
    """Why the server's certificate was refused, and the cure. None if the error is another one.

    This reads the error's text, since not all three kinds of driver keep the original error.
    """
    found = UNTRUSTED.search(str(error))
    if found is None:
        return None
    cure = CURE_NAME if OTHER_NAME in found[1] else CURE_TRUST
    return f"shows a certificate that is not trusted ({found[1]}): {cure}"
