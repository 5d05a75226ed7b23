"""The bulk actions that the worker of compose.yaml runs: put your own here."""

import logging

from heatsink.bulk import Actions, Context

actions = Actions()


@actions.action("say")
async def say(item: object, context: Context) -> None:
    logging.getLogger(__name__).warning("%s: %s", context.idempotency_key, item)
