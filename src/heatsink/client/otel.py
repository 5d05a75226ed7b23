"""OpenTelemetry spans; needs opentelemetry-api only.

    async with heatsink.connect("sqlite:///chat.db", hooks=[Tracing()]) as hs: ...

The application sets up the tracer provider, which decides where spans go.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from heatsink import __version__
from heatsink.errors import Misconfigured
from heatsink.primitives.hooks import Call, Event, Hook
from heatsink.primitives.words import pip_install

try:
    from opentelemetry.context import Context as Surroundings
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        TracerProvider,
        get_current_span,
        get_tracer,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise Misconfigured(f"Tracing needs OpenTelemetry: {pip_install('otel')}") from None

HEADER = "traceparent"
KINDS = {"bulk.submit": SpanKind.PRODUCER, "bulk.run": SpanKind.CONSUMER}
_w3c = TraceContextTextMapPropagator()


class Tracing(Hook):
    """Spans for appends, pages, counters, loads, submissions and runs of items.

    If an attempt is throttled or repeated, the span of its call gets an event. `provider` defaults
    to the global tracer provider::

        async with heatsink.connect(url, hooks=[Tracing()]) as hs: ...
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._span = get_tracer("heatsink", __version__, provider).start_as_current_span

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        """Make one span per call.

        A run of an item has its own trace, linked to the submitter's trace: one trace with the runs
        of a million items would be of no use.
        """
        is_run = call.name == "bulk.run"
        with self._span(
            f"heatsink.{call.name}",
            context=Surroundings() if is_run else None,
            kind=KINDS.get(call.name, SpanKind.INTERNAL),
            links=[link for trace in call.links if (link := _link(trace))],
            attributes={"heatsink.key": call.key} if call.key else None,
        ) as span:
            try:
                yield
            finally:
                _describe(span, call)

    def on_event(self, event: Event) -> None:
        if event.name.startswith("call."):
            get_current_span().add_event(f"heatsink.{event.name}", {"message": event.message})

    def trace(self) -> str:
        carrier: dict[str, str] = {}
        _w3c.inject(carrier)
        return carrier.get(HEADER, "")


def _describe(span: Span, call: Call) -> None:
    span.set_attributes({f"heatsink.{name}": value for name, value in call.attributes.items()})


def _link(trace: str) -> Link | None:
    submitter = get_current_span(_w3c.extract({HEADER: trace})).get_span_context()
    return Link(submitter) if submitter.is_valid else None
