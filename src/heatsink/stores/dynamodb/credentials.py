"""Where credentials come from: botocore's chain, asked now and then, never on the hot path."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from heatsink.clock import Clock
from heatsink.errors import InvalidSetting, Misconfigured, NoAccess, Unavailable

from .signing import Credentials

ASK_EVERY_S = 60.0
LOCAL = Credentials("local", "local")


class CredentialSource(Protocol):
    async def get(self) -> Credentials: ...


class FixedCredentials:
    """For tests, and for engines on this machine, which accept any."""

    def __init__(self, credentials: Credentials = LOCAL) -> None:
        self._credentials = credentials

    async def get(self) -> Credentials:
        return self._credentials


class ChainCredentials:
    """Environment, profile, container, instance role, web identity: whatever botocore finds.

    botocore renews what expires some minutes ahead when it is asked; it is asked every minute, in
    a thread, as it may have to wait for the network. Meanwhile the last ones serve.
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
            raise Unavailable("no AWS credentials could be had yet: retry")
        return self._current

    def _ask_beside(self) -> None:
        """One question at a time, however long the answer takes."""
        if self._asking is None or self._asking.done():
            self._asked_s = self._clock.monotonic_s()
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(_retrieve)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            frozen = await loop.run_in_executor(None, self._chain.get_frozen_credentials)
        except Exception as error:  # whatever a provider raises, the last credentials may serve
            if self._current is None:
                self._asked_s = float("-inf")
                raise Unavailable(f"AWS credentials could not be had ({error}): retry") from error
            return
        self._current = Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Everybody who waited may have been cancelled: then nobody else takes the error."""
    if not task.cancelled():
        task.exception()


def _find_chain(profile: str | None) -> Any:
    try:
        from botocore.exceptions import BotoCoreError, ProfileNotFound
        from botocore.session import Session
    except ImportError:
        raise Misconfigured("DynamoDB needs botocore: pip install 'heatsink[aws]'") from None
    try:
        chain = Session(profile=profile).get_credentials()
    except ProfileNotFound as error:
        raise InvalidSetting(f"{error}: check profile= in the url and AWS_PROFILE") from None
    except BotoCoreError as error:  # half of a pair, a file that does not parse
        raise NoAccess(
            f"AWS credentials cannot be read ({error}): check the AWS_… variables and files"
        ) from None
    if chain is None:
        raise NoAccess(
            "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "name a profile with ?profile=, or run with a role"
        )
    return chain
