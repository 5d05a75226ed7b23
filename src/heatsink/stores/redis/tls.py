"""TLS to Redis: what is wrong with the authority or the certificate is told with its cure."""

from __future__ import annotations

import re
import ssl

from heatsink.errors import InvalidSetting

from .address import Address

UNTRUSTED = re.compile(r"certificate verify failed: (.+?)\.? \(_ssl")
OTHER_NAME = "mismatch"
CURE_TRUST = "name its authority's file with ?ca= in the news URL"
CURE_NAME = "use the host that the certificate names in the news URL"


def check_authority(address: Address) -> None:
    """At the start: later, a file that is not there would look like a Redis that is down."""
    ca = address.options.ca
    if not ca:
        return
    if not address.tls:
        raise InvalidSetting("ca in the news URL is for TLS: begin the URL with rediss")
    try:
        ssl.create_default_context(cafile=ca)
    except OSError as error:
        reason = "no certificates in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidSetting(
            f"ca in the news URL, {ca!r}, cannot be used ({reason}): name a file in PEM format"
        ) from None


def distrust(error: Exception) -> str | None:
    """Why the server's certificate was refused, and the cure; None if that was not the matter.

    By the text: of the three kinds of driver, not all keep the error that began it.
    """
    found = UNTRUSTED.search(str(error))
    if found is None:
        return None
    cure = CURE_NAME if OTHER_NAME in found[1] else CURE_TRUST
    return f"shows a certificate that is not trusted ({found[1]}): {cure}"
