"""`--tracing`: OpenTelemetry spans of a process, if the extra for it is installed."""

from __future__ import annotations

import logging

import click
from starlette.types import ASGIApp

from heatsink.errors import Misconfigured
from heatsink.primitives.hooks import Hook

logger = logging.getLogger("heatsink.serve")
tracing_option = click.option(
    "--tracing", is_flag=True, help="Record OpenTelemetry spans. Needs pip install heatsink[otel]."
)


def tracing_hooks(tracing: bool) -> list[Hook]:
    if not tracing:
        return []
    try:
        from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

        from heatsink.client.otel import Tracing
    except ImportError:
        raise Misconfigured("--tracing needs an extra: pip install 'heatsink[otel]'") from None
    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        logger.warning("--tracing: no exporter is set up: start it with `opentelemetry-instrument`")
    return [Tracing()]


def traced(app: ASGIApp, tracing: bool) -> ASGIApp:
    """The application with a span per request; call `tracing_hooks` first."""
    if not tracing:
        return app
    from .traced_app import TracedApp

    return TracedApp(app)
