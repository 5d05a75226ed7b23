"""`--tracing`: OpenTelemetry spans of a process, if the extra for it is installed."""

from __future__ import annotations

import logging

import click
from starlette.types import ASGIApp

from heatsink.errors import Misconfigured
from heatsink.primitives.hooks import Hook
from heatsink.primitives.words import pip_install

logger = logging.getLogger("heatsink.serve")
tracing_option = click.option(
    "--tracing",
    is_flag=True,
    help="Record OpenTelemetry spans. Needs the extra otel: pip install '.[otel]'",
)


def tracing_hooks(tracing: bool) -> list[Hook]:
    if not tracing:
        return []
    try:
        from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

        from heatsink.client.otel import Tracing
    except ImportError:
        raise Misconfigured(f"--tracing needs an extra: {pip_install('otel')}") from None
    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        logger.warning(
            "--tracing is set, but no exporter of spans is configured: start this command with "
            "`opentelemetry-instrument`"
        )
    return [Tracing()]


def traced(app: ASGIApp, tracing: bool) -> ASGIApp:
    """Return the application. If `tracing` is set, each request gets a span.

    Call `tracing_hooks` first: it raises if OpenTelemetry is not installed.
    """
    if not tracing:
        return app
    from .traced_app import TracedApp

    return TracedApp(app)
