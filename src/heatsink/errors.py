"""Every error that Heatsink raises.

HeatsinkError                   catch this to catch them all
├── InvalidInput                the call is wrong: fix it, do not retry
│   ├── InvalidKey              empty, too long, not text
│   ├── InvalidId               not this deployment's kind of id, or from the future
│   ├── InvalidCursor           made up, damaged, or of another key
│   ├── InvalidBody             not bytes, or too large
│   └── InvalidSetting          names the setting and what it accepts
│       ├── NotFound            names something that does not exist
│       └── Misconfigured       the deployment is wrong, not the call: its operator must fix it
│           ├── NoTable         the DynamoDB table does not exist, or no longer
│           ├── TableExists     the DynamoDB table to be created exists already
│           └── NoAccess        credentials, login or certificate are refused
├── Conflict                    the id is taken by another body
│   ├── Deleted                 the id was used and deleted
│   └── IdReused                the id belongs to a batch with other items or options
├── TokenExpired                the token is too old: it may have been counted already
├── Retryable                   the same call, with the same id, may succeed later
│   ├── Throttled               one partition is over its limit
│   ├── Unavailable             the store did not answer, or not in time
│   │   └── NoRegistry          the store has no registry: it is new, or it was wiped
│   └── Overloaded              all retries failed until the deadline
├── Closed                      the client was closed
└── RegistryError               the registry refuses a change, or this process
    ├── Deposed                 another coordinator leads
    ├── Outdated                another process committed first: read again, then retry
    └── WrongIncarnation        the data was restored from a backup, or wiped: reconnect
"""

from __future__ import annotations

from typing import NamedTuple


class HeatsinkError(Exception):
    """Root of all errors of this library."""

    field: str | None = None
    """The parameter or setting that is wrong, if there is one."""
    id: object = None
    """The id of an append that may have been applied: repeat the append with this `id=`."""


class InvalidInput(HeatsinkError):
    """An argument is invalid, and retrying cannot help. The message names the field and the fix."""

    def __init__(self, message: str = "", *, field: str | None = None) -> None:
        super().__init__(message)
        if field is not None:
            self.field = field


class InvalidKey(InvalidInput):
    """A key is empty, too long, not a string, or not valid text."""

    field = "key"


class InvalidId(InvalidInput):
    """An id is malformed, of another kind than the deployment's, or from the future."""

    field = "id"

    def __init__(self, message: str = "", *, wrong: str = "", field: str = "id") -> None:
        """With `wrong`, the message is the name of the field and what is wrong with its value."""
        super().__init__(message or f"{field} {wrong}", field=field)
        self._wrong = wrong

    def called(self, name: str) -> InvalidId:
        """Return the same error about the parameter `name`, for calls in which it holds the id."""
        return InvalidId("" if self._wrong else str(self), wrong=self._wrong, field=name)


class InvalidCursor(InvalidInput):
    """A cursor was not made by this deployment for this key and order."""

    field = "cursor"


class InvalidBody(InvalidInput):
    """A body is not bytes, or is larger than a row may be."""

    field = "body"


class InvalidSetting(InvalidInput):
    """A setting, limit or amount is outside its range."""


class NotFound(InvalidSetting):
    """The named thing, such as a batch or a message, does not exist, or not any more."""


class Misconfigured(InvalidSetting):
    """A table, a login, a queue, a port or a package that this process needs is missing or wrong.

    The message says what the operator must fix. If a call after `connect` raises this error, the
    call itself is right: repeat it with the same id after the fix.
    """


class NoTable(Misconfigured):
    """There is no DynamoDB table of that name. It was never created, or it was deleted."""


class TableExists(Misconfigured):
    """The DynamoDB table exists already, or is being created or deleted."""


class NoAccess(Misconfigured):
    """The store refuses this process: its credentials, its login or a certificate."""


class Conflict(HeatsinkError):
    """The id was used before, with another body or amount. This call wrote nothing."""


class Deleted(Conflict):
    """The id was used before and its entry was deleted; a retry does not bring the entry back."""


class IdReused(Conflict):
    """The id belongs to a batch with another action, other items or other options."""

    field = "id"


class TokenExpired(HeatsinkError):
    """The token is older than the time for which tokens are remembered. Nothing was added."""

    @classmethod
    def by(cls, limit: str) -> TokenExpired:
        """Return the error for a token that is older than `limit`, which is in words."""
        return cls(
            f"token is older than {limit}, so the store no longer knows whether its add was "
            "counted. This call added nothing. If the add is missing, repeat it with a new token"
        )


class Retryable(HeatsinkError):
    """The call may succeed later: repeat it with the same id."""


class Throttled(Retryable):
    """One partition is over its limit of reads or writes."""

    def __init__(self, partition: str, text: str = "") -> None:
        super().__init__(text or f"partition {partition!r} is over its limit")
        self.partition = partition

    @property
    def is_cured_by_buckets(self) -> bool:
        """Whether more buckets for the key prevent this error.

        The value is False if the limit of the whole table or of the account was exceeded.
        """
        return bool(self.partition)


class Unavailable(Retryable):
    """The store did not answer. A write may have been applied: retry with the same id."""


class NoRegistry(Unavailable):
    """The store has no registry. Either no client has connected to it yet, or it was wiped."""

    def __init__(self) -> None:
        super().__init__(
            "this store has no registry. If the store is new, connect a client or start a "
            "coordinator, which creates the registry. If it is not new, it was wiped: restore a "
            "backup"
        )


class Overloaded(Retryable):
    """Every retry failed until the deadline.

    The write may have been applied: retry with the same id.
    """


class Closed(HeatsinkError):
    """The client was closed, or was never opened.

    Use the client inside `async with heatsink.connect(...)` or `with heatsink.connect_sync(...)`.
    """

    @classmethod
    def meanwhile(cls, what: str) -> Closed:
        """Return the error for a call that was running when the client or a part of it closed."""
        return cls(
            f"{what} was closed during the call. A write may have been applied: "
            "repeat it with the same id"
        )


class RegistryError(HeatsinkError):
    """The registry refused a change, or this process must not use the registry any more."""


class Deposed(RegistryError):
    """Another coordinator leads now, so this one must stop deciding."""


class Outdated(RegistryError):
    """Another commit came first: read the registry again and retry."""


class WrongIncarnation(RegistryError):
    """The data store was restored, replaced or wiped since this process connected: reconnect."""


class ErrorCodes(NamedTuple):
    """The HTTP status and the exit code for a kind of error."""

    status: int
    """Status of the HTTP response."""
    exit_code: int
    """Exit code of the command: 2 if the same command can never succeed, otherwise 1."""
    retry_after_s: int | None = None
    """Seconds for the header Retry-After. None if the same request will fail again."""

    @property
    def retryable(self) -> bool:
        return self.retry_after_s is not None


RETRY_AFTER_S = 1
ANSWERS: dict[
    type[HeatsinkError], ErrorCodes
] = {  # a class not listed here has its parent's answer
    HeatsinkError: ErrorCodes(503, 1, RETRY_AFTER_S),
    InvalidInput: ErrorCodes(400, 2),
    NotFound: ErrorCodes(404, 1),
    Misconfigured: ErrorCodes(503, 1, RETRY_AFTER_S),  # the request is fine: it may be sent again
    Conflict: ErrorCodes(409, 1),
    IdReused: ErrorCodes(422, 1),
    TokenExpired: ErrorCodes(410, 1),
    Throttled: ErrorCodes(429, 1, RETRY_AFTER_S),
}


def answer_to(kind: type[HeatsinkError]) -> ErrorCodes:
    """Return the HTTP status and the exit code for errors of a class."""
    return next(ANSWERS[each] for each in kind.__mro__ if each in ANSWERS)


def answer_of(error: HeatsinkError) -> ErrorCodes:
    """Return the HTTP status and the exit code for an error.

    If the last attempt before the deadline was throttled, the status is 429.
    """
    if isinstance(error, Overloaded) and isinstance(error.__cause__, Throttled):
        error = error.__cause__
    return answer_to(type(error))
