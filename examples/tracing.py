"""OpenTelemetry spans of a batch and its items. Run it: ./dev run python examples/tracing.py"""

from __future__ import annotations

import asyncio
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import heatsink
from heatsink.bulk import Actions, Context
from heatsink.client.otel import Tracing

actions = Actions()


@actions.action("tag")
async def tag(_item: Any, context: Context) -> None:
    await context.once("tags", context.idempotency_key.encode())


async def main() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()  # yours sends them somewhere
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with heatsink.connect("memory://", hooks=[Tracing(provider)]) as hs:
        worker = hs.worker(actions)
        running = asyncio.create_task(worker.run())
        batch = await hs.bulk.submit("tag", ["a", "b"])
        await hs.bulk.wait(batch.id)
        worker.stop()
        await running
    for span in exporter.get_finished_spans():
        assert span.context is not None
        linked = [f"linked to {link.context.trace_id:032x}" for link in span.links]
        print(f"{span.name:22} {span.context.trace_id:032x}", *linked)


if __name__ == "__main__":
    asyncio.run(main())
