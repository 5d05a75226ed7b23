"""The actions that `settings.HEATSINK["actions"]` names, ready for a worker.

`manage.py heatsink_worker` names this module to `heatsink worker`, which imports it in every
process. So Django is set up in each of them before the application's modules are imported.
"""

from __future__ import annotations

import django

from heatsink.bulk.actions import Actions
from heatsink.errors import InvalidSetting
from heatsink.server.commands.worker import find_actions

from . import EXAMPLE, NAME, setting, with_connections_closed


def configured() -> Actions:
    """Return the application's actions. Raises `InvalidSetting` if the settings name none."""
    spec = setting().get("actions")
    if not isinstance(spec, str):
        raise InvalidSetting(
            f'settings.{NAME}["actions"] must name your actions, such as '
            f"{EXAMPLE['actions']!r}: add it to your Django settings",
            field="actions",
        )
    return with_connections_closed(find_actions(spec))


django.setup()
actions = configured()
