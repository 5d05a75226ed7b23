"""`python manage.py heatsink_worker`: `heatsink worker` with the queue and the actions of Django's
settings."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand

from heatsink.cli import main
from heatsink.contrib.django import EXAMPLE, NAME, setting
from heatsink.errors import HeatsinkError, InvalidSetting, answer_of

ACTIONS = "heatsink.contrib.django.worker:actions"


class Command(BaseCommand):  # type: ignore[misc]
    help = "Run the items of the queue with your actions. Options are those of `heatsink worker`."

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand all words to `heatsink worker`, except those that Django itself has read."""
        django_options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        django_options.add_argument("--settings")
        django_options.add_argument("--pythonpath")
        _, words = django_options.parse_known_args(argv[2:])
        try:
            self.handle(*words)
        except HeatsinkError as error:
            self.stderr.write(f"heatsink: {error}")
            sys.exit(answer_of(error).exit_code)

    def handle(self, *words: str, **_: Any) -> None:
        main(["worker", ACTIONS, *self._queue(words), *words])

    def _queue(self, words: tuple[str, ...]) -> list[str]:
        if any(word.partition("=")[0] in ("--queue", "--help", "-h") for word in words):
            return []
        queue = setting().get("queue")
        if not queue:
            raise InvalidSetting(
                f'settings.{NAME}["queue"] must name the Redis of the queue, such as '
                f"{EXAMPLE['queue']!r}: add it, or use --queue",
                field="queue",
            )
        return ["--queue", str(queue)]
