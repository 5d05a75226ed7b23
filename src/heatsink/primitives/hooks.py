"""Hooks: how tracing, metrics, error reporting and logging attach to a client.

A hook is a subclass of `Hook` that overrides what it needs. This one prints slow calls::

    class Slow(Hook):
        @contextmanager
        def around(self, call: Call) -> Iterator[None]:
            began_s = time.monotonic()
            yield
            if time.monotonic() - began_s > 0.5:
                print(f"{call.name} {call.key} was slow")

    heatsink.connect("sqlite:///chat.db", hooks=[Slow()])

A hook observes and never interferes: if a hook raises an exception, Heatsink logs it, and a hook
cannot suppress the error of a call. Without a hook that overrides `around`, calls are not wrapped
and cost nothing more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from heatsink.errors import InvalidSetting

from .checks import check_kind, shown

Attribute = str | int
T = TypeVar("T")
NOTHING: Mapping[str, Attribute] = {}
logger = logging.getLogger("heatsink")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the application makes, or a run of the application's code that Heatsink starts.

    `name` is one of `log.append`, `log.page`, `log.get`, `log.delete`, `log.erase`, `counters.add`,
    `counters.value`, `reads.load` (the application's load after a cache miss), `bulk.submit` and
    `bulk.run` (the application's handler).
    """

    name: str
    key: str = ""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    """`batch`, `action`, `tenant`, `items`, `attempt`, `item`; complete when the call ends."""
    links: tuple[str, ...] = ()
    """What `Hook.trace` returned when the batches of this run were submitted."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in the background, or during a call.

    `name` is one of `leadership.gained`, `leadership.lost`, `decision`, `advice`,
    `coordinator.failed`, `coordinator.recovered`, `background.failed`, `news.lost`, `news.back`,
    `settings.differ`, `call.throttled`, `call.retried`, `bulk.waiting` (no worker runs a batch that
    the application waits for) and `bulk.error` (a handler raised an exception).
    """

    name: str
    message: str
    level: int = logging.INFO
    """A level of the standard library's `logging`."""
    error: BaseException | None = None
    fields: Mapping[str, Attribute] = field(default_factory=dict)


class Hook:
    """Observes a client; override what you need."""

    def around(self, call: Call) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return a context manager that is entered when the call begins and left when it ends.

        If the call raises an error, `__exit__` of the context manager gets the error.
        """
        return nullcontext()

    def on_event(self, event: Event) -> None:
        """Called for each event. The method must not block, since it may run in the event loop."""

    def on_open(self, client: object) -> None:
        """Called with the `Heatsink` client when the client was opened."""

    def on_close(self, client: object) -> None:
        """Called before the client closes."""

    def trace(self) -> str:
        """Return the trace of the code that submits a batch, as text.

        The batch stores this text. Runs of its items get it in `Call.links`.
        """
        return ""


class EventLog(Hook):
    """Writes events to the standard library's `logging`; every client has this hook."""

    def on_event(self, event: Event) -> None:
        area = "heatsink.lead" if event.name.startswith("leadership.") else "heatsink"
        extra = {"event": event.name, "fields": dict(event.fields)}
        logging.getLogger(area).log(event.level, event.message, exc_info=event.error, extra=extra)


class Hooks:
    """Calls all hooks of a client."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        if not isinstance(hooks, list | tuple):
            raise InvalidSetting(
                f"hooks must be a list like [Tracing()], not {shown(hooks)}", field="hooks"
            )
        for number, hook in enumerate(hooks):
            if isinstance(hook, type):
                raise InvalidSetting(
                    f"hooks[{number}] is a class: write {hook.__name__}()", field=f"hooks[{number}]"
                )
            check_kind(f"hooks[{number}]", hook, Hook)
        self._hooks: tuple[Hook, ...] = (EventLog(), *hooks)
        self._around = tuple(hook for hook in hooks if type(hook).around is not Hook.around)
        self.observes_calls = bool(self._around)

    def __repr__(self) -> str:
        return f"Hooks({[type(hook).__name__ for hook in self._hooks[1:]]})"

    def around(self, call: Call) -> AbstractContextManager[None]:
        """Return a context manager that enters `around` of all hooks and exits in reverse order."""
        return _Around(self._around, call)

    def event(
        self,
        name: str,
        message: str,
        level: int = logging.INFO,
        error: BaseException | None = None,
        fields: Mapping[str, Attribute] = NOTHING,
    ) -> None:
        event = Event(name, message, level, error, fields)
        self._tell(lambda hook: hook.on_event(event))

    def failed(self, what: str, error: BaseException) -> None:
        """Report that the client's part `what` failed unexpectedly, and will be started again."""
        message, fields = f"{what} failed, restarting", {"what": what}
        self.event("background.failed", message, logging.ERROR, error, fields)

    def opened(self, client: object) -> None:
        self._tell(lambda hook: hook.on_open(client))

    def closing(self, client: object) -> None:
        self._tell(lambda hook: hook.on_close(client))

    def trace(self) -> str:
        """Return the caller's trace, from the first hook that returns one."""
        return next(filter(None, self._tell(lambda hook: hook.trace())), "")

    def _tell(self, call: Callable[[Hook], T]) -> list[T]:
        """Call every hook, and return the results. An error of a hook is logged."""
        answers = []
        for hook in self._hooks:
            try:
                answers.append(call(hook))
            except Exception:
                _report(hook)
        return answers


class _Around(AbstractContextManager[None]):
    def __init__(self, hooks: Sequence[Hook], call: Call) -> None:
        self._hooks = hooks
        self._call = call
        self._entered: list[tuple[Hook, AbstractContextManager[object]]] = []

    def __enter__(self) -> None:
        for hook in self._hooks:
            try:
                manager = hook.around(self._call)
                manager.__enter__()
            except Exception:
                _report(hook)
            else:
                self._entered.append((hook, manager))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for hook, manager in reversed(self._entered):
            try:
                manager.__exit__(kind, error, traceback)
            except Exception as raised:
                if raised is not error:
                    _report(hook)


def _report(hook: Hook) -> None:
    logger.exception("the hook %s failed; the call goes on", type(hook).__qualname__)


NO_HOOKS = Hooks()
