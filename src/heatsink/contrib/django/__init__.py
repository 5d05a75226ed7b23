"""Django: one client per process, batches after the commit, and `manage.py heatsink_worker`.

    INSTALLED_APPS = [..., "heatsink.contrib.django"]
    HEATSINK = {
        "url": "dynamodb://messages?region=eu-west-1",
        "queue": "redis://queue:6379",
        "actions": "shop.tasks:actions",
    }

`url` and all further keys are arguments of `heatsink.connect`. Without `url`, the client keeps data
in memory, which is enough for an application that only submits batches. `actions` names the
`heatsink.bulk.Actions` object that `python manage.py heatsink_worker` runs.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any

from heatsink.bulk.actions import Action, Actions
from heatsink.client import connect_sync
from heatsink.client.blocking import BlockingHeatsink
from heatsink.errors import InvalidSetting, Misconfigured
from heatsink.primitives.chance import fresh_random

try:
    from asgiref.sync import sync_to_async
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.db import close_old_connections, transaction
except ModuleNotFoundError:
    raise Misconfigured("heatsink.contrib.django needs Django: pip install django") from None

__all__ = ["client", "close", "submit_on_commit", "with_connections_closed"]

NAME = "HEATSINK"
IN_MEMORY = "memory://"
SETUP = f"{__name__}.setup"  # processes of handlers import it first
EXAMPLE = {"queue": "redis://queue:6379", "actions": "shop.tasks:actions"}

_lock = Lock()
_opened: dict[int, tuple[BlockingHeatsink, ExitStack]] = {}
"""The client of this process, by its process id: a forked child opens a client of its own."""


def setting() -> dict[str, Any]:
    """Return `settings.HEATSINK`. Raises `InvalidSetting` if it is missing or no dict."""
    found = getattr(settings, NAME, None)
    if not isinstance(found, dict):
        raise InvalidSetting(
            f"settings.{NAME} must be a dict such as {EXAMPLE}: add it to your Django settings",
            field=NAME,
        )
    return dict(found)


def client() -> BlockingHeatsink:
    """Return the client of this process, which any thread may use. The first call opens it.

    The client is closed when the process ends. Raises `InvalidSetting` for bad settings, and
    `Unavailable` if a server does not answer::

        def room(request, name):
            client().log.append(name, request.body)
    """
    process = os.getpid()
    with _lock:
        if process not in _opened:
            options = setting()
            options.pop("actions", None)
            stack = ExitStack()
            url = options.pop("url", IN_MEMORY)
            opened = stack.enter_context(connect_sync(url, **options))
            _opened.clear()  # what a parent process opened belongs to the parent
            _opened[process] = opened, stack
            atexit.register(close)
        return _opened[process][0]


def close() -> None:
    """Close the client of this process. The next `client()` opens a new one::

    client().log.append("conv", b"hello")
    close()
    """
    with _lock:
        _, stack = _opened.pop(os.getpid(), (None, ExitStack()))
    stack.close()


def submit_on_commit(
    action: str,
    items: Iterable[Any],
    *,
    using: str | None = None,
    id: str | None = None,
    **order: Any,
) -> str:
    """Submit a batch when the current transaction commits. Returns the id of the batch.

    If the transaction is rolled back, no batch is submitted. Without a transaction the batch is
    submitted at once. Items are drawn after the commit, so that a queryset sees what the
    transaction wrote. `using` names the database. The other arguments are those of
    `hs.bulk.submit`, and so are the errors, which reach the code that commits::

        with transaction.atomic():
            order.save()
            submit_on_commit("send-receipt", [order.pk], tenant=order.shop)
    """
    chosen = id or f"{fresh_random().getrandbits(128):032x}"

    def submit() -> None:
        client().bulk.submit(action, items, id=chosen, **order)

    transaction.on_commit(submit, using=using)
    return chosen


def with_connections_closed(actions: Actions) -> Actions:
    """Return a copy of the actions that treats database connections as Django's requests do.

    Before and after each run of a handler, Django closes connections that are too old or broken
    (`CONN_MAX_AGE`). `manage.py heatsink_worker` does this already; a worker that you start in
    another way needs this call::

        client().worker(with_connections_closed(actions)).run()
    """
    return replace(actions.wrapped(_closing), imports=[SETUP, *actions.imports])


def _closing(action: Action) -> Action:
    around = _closing_where_django_runs if action.is_async else _closing_here
    return replace(action, middleware=(around, *action.middleware))


@contextmanager
def _closing_here(_: object) -> Iterator[None]:
    """Close old connections around a plain handler, in the handler's own thread."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@asynccontextmanager
async def _closing_where_django_runs(_: object) -> AsyncIterator[None]:
    """Close old connections around an `async def`, in the thread that Django uses for queries."""
    await sync_to_async(close_old_connections)()
    try:
        yield
    finally:
        await sync_to_async(close_old_connections)()


def _forget(*, setting: str, **_: Any) -> None:
    if setting == NAME:  # `override_settings` in a test
        close()


setting_changed.connect(_forget)
