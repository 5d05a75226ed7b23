"""`hs.settings`: the settings of the whole deployment, which every process follows.

A deployment is all processes on one data store. If the registry holds a value for a setting, this
value is in force in all processes. Otherwise each process uses the value that it was started with,
or else the default. Most settings matter only in the leader: the rules of spreading, near reads and
scaling.
"""

from __future__ import annotations

import ast
import inspect
import logging
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from textwrap import dedent
from typing import Any, Literal, get_type_hints

import msgspec

from heatsink.bulk.controls import NO_CONTROLS, Controls
from heatsink.bulk.limits import parse_amounts
from heatsink.errors import InvalidSetting, NotFound, Outdated
from heatsink.primitives.checks import check_number, check_text, shown
from heatsink.primitives.hooks import Hooks
from heatsink.primitives.owner import Owner
from heatsink.registry.registry import Registry
from heatsink.registry.settings import (
    StoredSetting,
    set_decision,
    stored_settings,
    unset_decision,
)

from .settings import Settings

SECTIONS = ("rules", "workers", "near", "timelines", "slots")
SINGLE = ("report_alarm", "report_floor", "scaling", "window_s")
WEIGHT, LIMIT = "bulk.weights.", "bulk.limits."
PAUSED_TENANT, PAUSED_ACTION = "bulk.paused_tenants.", "bulk.paused_actions."
NAMED: dict[str, tuple[str, Any, Any]] = {  # the field of BulkSettings, the default, the type
    WEIGHT: ("weights", 1.0, float),
    LIMIT: ("limits", None, str),
    PAUSED_TENANT: ("paused_tenants", False, bool),
    PAUSED_ACTION: ("paused_actions", False, bool),
}
REASON_MAX, BY_MAX = 500, 200
LEADERS_ONLY = ("rules.", "workers.", "near.", "slots.", "scaling")
DEFAULTS = Settings()
Source = Literal["deployment", "process", "default"]


class SettingInForce(msgspec.Struct, frozen=True):
    """The value of a setting in one process. `print` shows the value and where it was set."""

    name: str
    value: Any
    """The value in force in this process."""
    source: Source
    """Where the value was set. `deployment`: the registry holds it. `process`: this process was
    started with it. `default`: nobody set it."""
    default: Any
    by: str = ""
    """Who set the value for the deployment."""
    changed_ms: int | None = None
    reason: str = ""
    local: Any = None
    """The value that this process was started with, if the deployment has another value."""

    def __str__(self) -> str:
        origin = {
            "deployment": f"set by {self.by}: {self.reason}",
            "process": "of this process",
            "default": "default",
        }[self.source]
        differs = "" if self.local is None else f"; this process was started with {self.local!r}"
        return f"{self.name} = {self.value!r} ({origin}{differs})"


@cache
def setting_names() -> tuple[str, ...]:
    """Return the names of all settings except those with a free part, `bulk.weights.TENANT` etc."""
    fields = ((section, getattr(DEFAULTS, section)) for section in SECTIONS)
    nested = [f"{section}.{name}" for section, of in fields for name in of.__struct_fields__]
    return tuple(sorted([*SINGLE, *nested]))


class DeploymentSettings:
    """`hs.settings`: read, set and unset the settings of the whole deployment.

    Names are paths into `heatsink.Settings`, such as `rules.buckets_max`,
    `bulk.weights.TENANT`, `bulk.limits.NAME`, `bulk.paused_tenants.TENANT` and
    `bulk.paused_actions.ACTION`. An unknown name raises `NotFound`, and a value that does not fit
    `InvalidSetting`. A change is in force in every process within a second::

        await hs.settings.set("rules.shrink", False, reason="never fewer buckets")
        print(hs.settings.get("rules.shrink"))
    """

    def __init__(
        self, local: Settings, registry: Registry, name: str, hooks: Hooks, owner: Owner
    ) -> None:
        self._local = local
        self._registry = registry
        self._name = name
        self._hooks = hooks
        self._owner = owner
        self._now = local
        self._seen = -1
        self._warned: set[str] = set()
        self._stored: dict[str, StoredSetting] = {}
        self._controls = NO_CONTROLS

    @property
    def now(self) -> Settings:
        """The settings in force in this process."""
        self._follow()
        return self._now

    def all(self) -> list[SettingInForce]:
        """Return all settings: `for setting in hs.settings.all(): print(setting)`"""
        self._follow()
        names = [*setting_names()]
        for prefix, (field, _, _) in NAMED.items():
            known = {*getattr(self._local.bulk, field), *getattr(self._now.bulk, field)}
            names += [f"{prefix}{name}" for name in sorted(known)]
        return [self.get(name) for name in names]

    @property
    def controls(self) -> Controls:
        """What operators have changed for tenants and actions, as the queue's partitions get it."""
        self._follow()
        return self._controls

    def get(self, name: str) -> SettingInForce:
        """Return one setting in force.

        Raises `NotFound` for an unknown name::

            print(hs.settings.get("rules.buckets_max").value)
        """
        _check_name(name)
        self._follow()
        value, local, default = (_value(of, name) for of in (self._now, self._local, DEFAULTS))
        stored = self._stored.get(name)
        if stored is None:
            source: Source = "default" if local == default else "process"
            return SettingInForce(name, value, source, default)
        other = local if local not in (default, value) else None
        return SettingInForce(
            name, value, "deployment", default, stored.by, stored.changed_ms, stored.reason, other
        )

    async def set(self, name: str, value: Any, *, reason: str, by: str = "") -> SettingInForce:
        """Set a setting for all processes. `by` names who sets it; the default is this process.

        Text such as `"false"` or `"12"` is converted to the setting's type. Raises `NotFound` for
        an unknown name, and `InvalidSetting` for a value that is not valid::

            await hs.settings.set("workers.base", 16, reason="larger machines")
        """
        value = self.checked(name, value)
        await self._publish({name: value}, reason, by)
        return self.get(name)

    async def unset(self, name: str, *, reason: str = "unset") -> SettingInForce:
        """Remove the deployment's value: `await hs.settings.unset("rules.shrink")`

        Every process then uses the value that it was started with, or the default. Raises
        `NotFound` for an unknown name.
        """
        _check_name(name)
        decision = unset_decision(name, check_text("reason", reason, REASON_MAX))
        self._owner.check()
        await self._registry.publish([decision], term=None)
        return self.get(name)

    def checked(self, name: str, value: Any) -> Any:
        """Return the value as `set` would store it. Raises `InvalidSetting` if it is invalid."""
        _check_name(name)
        fitting = _converted(name, value)
        _replaced(self.now, name, fitting)
        return fitting

    async def found(self, settings: Mapping[str, Any]) -> None:
        """Store `settings` if the deployment is new.

        Otherwise change nothing, and warn of each setting that differs from the value in force.
        """
        wanted = {name: self.checked(name, value) for name, value in settings.items()}
        if wanted and self._registry.view.version == 0:
            try:
                await self._publish(wanted, "settings of the process that founded the store", "")
                return
            except Outdated:
                pass  # another process founded it at the same moment
        for name, value in wanted.items():
            if self.get(name).value != value:
                self._warn(name, f"settings has {name}={value!r}", self.get(name))

    async def _publish(self, values: Mapping[str, Any], reason: str, by: str) -> None:
        check_text("reason", reason, REASON_MAX)
        who = check_text("by", by or self._name, BY_MAX)
        self._owner.check()
        now_ms = self._registry.now_ms()
        settings = (StoredSetting(name, of, who, now_ms, reason) for name, of in values.items())
        await self._registry.publish([set_decision(each) for each in settings], term=None)

    # -- following -------------------------------------------------------------------------

    def _follow(self) -> None:
        view = self._registry.view
        if view.settings_version == self._seen:
            return
        self._seen = view.settings_version
        self._stored, now = {}, self._local
        for name, stored in stored_settings(view).items():
            try:
                now = _replaced(now, name, _converted(name, stored.value))
            except (InvalidSetting, NotFound) as error:  # of another version, or two at once
                self._tell_once(f"the deployment's setting {name} is ignored: {error}")
            else:
                self._stored[name] = stored
        self._now = now
        self._controls = Controls(
            self._registry.meta.incarnation,
            self._seen,
            self._stored_by_name(WEIGHT),
            frozenset(name for name, on in self._stored_by_name(PAUSED_TENANT).items() if on),
            frozenset(name for name, on in self._stored_by_name(PAUSED_ACTION).items() if on),
        )

    def _stored_by_name(self, prefix: str) -> dict[str, Any]:
        """Return the deployment's values of the settings with this prefix."""
        found = (name for name in self._stored if name.startswith(prefix))
        return {name.removeprefix(prefix): _value(self._now, name) for name in found}

    def warn_of_differences(self, coordinates: bool) -> None:
        """Warn once about each setting that was passed to this process and has no effect.

        There are two causes: the deployment has another value, or only a leader uses the setting
        and this process does not coordinate.
        """
        for setting in self.all():
            if setting.local is not None:
                given = f"this process was started with {setting.name}={setting.local!r}"
                self._warn(setting.name, given, setting)
            elif setting.source == "process" and not coordinates:
                self._warn_of_no_effect(setting)

    def _warn_of_no_effect(self, setting: SettingInForce) -> None:
        if setting.name.startswith(LEADERS_ONLY):
            self._tell_once(
                f"{setting.name}={setting.value!r} has no effect here: this process never leads. "
                f"To set it for all processes: heatsink settings set {setting.name} VALUE"
            )

    def _warn(self, name: str, given: str, setting: SettingInForce) -> None:
        self._tell_once(
            f"{given}, but the deployment has {setting.value!r}, which is in force (set by "
            f"{setting.by}: {setting.reason}). To change it: heatsink settings set {name} VALUE"
        )

    def _tell_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._hooks.event("settings.differ", message, logging.WARNING)


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise InvalidSetting(f"name must be text, not {shown(name)}", field="name")
    if _prefix_of(name):
        return
    if name not in setting_names():
        raise NotFound(f"there is no setting {shown(name)}: {_meant(name)}")


def _prefix_of(name: str) -> str:
    """Return the prefix of a name with a free part: `bulk.weights.` of `bulk.weights.TENANT`.

    Returns an empty text for any other name.
    """
    found = (p for p in NAMED if name.startswith(p) and len(name) > len(p))
    return next(found, "")


def _meant(name: str) -> str:
    """Return a hint for an unknown name: the setting that was probably meant.

    If none is similar, the hint says where all settings are listed.
    """
    names = setting_names()
    same_end = [each for each in names if each.rpartition(".")[2] == name]
    near = same_end or get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "`heatsink settings list`, or hs.settings.all() in Python, lists the settings"


@cache
def meaning_of(name: str) -> str:
    """Return what a setting means, in one paragraph."""
    if name.startswith(WEIGHT):
        return "The tenant's share of the workers, relative to other tenants."
    if name.startswith(LIMIT):
        return "What the limit allows in place of what its actions declare, such as '5, 20/s'."
    if name.startswith((PAUSED_TENANT, PAUSED_ACTION)):
        whose = "tenant" if name.startswith(PAUSED_TENANT) else "action"
        return f"Whether items of this {whose} wait. Items that run finish."
    section, _, field = name.rpartition(".")
    texts = field_texts(type(getattr(DEFAULTS, section)) if section else Settings)
    return " ".join(texts.get(field, "").partition("\n\n")[0].split())


def field_texts(kind: type) -> dict[str, str]:
    """Return the string below each field of a class, which documents the field.

    Type checkers and editors show these strings, too. Python does not keep them at run time, so
    this function reads them from the source.
    """
    (body,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _value(settings: Settings, name: str) -> Any:
    if prefix := _prefix_of(name):
        kept, default, _ = NAMED[prefix]
        return getattr(settings.bulk, kept).get(name.removeprefix(prefix), default)
    found: Any = settings
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _converted(name: str, value: Any) -> Any:
    """Convert the value to the type of the setting. Text may become a number or a bool."""
    if name.startswith(LIMIT):
        return str(value)
    if prefix := _prefix_of(name):
        wanted: Any = NAMED[prefix][2]
    else:
        section, _, field = name.rpartition(".")
        owner = type(getattr(DEFAULTS, section)) if section else Settings
        wanted = get_type_hints(owner)[field]
    try:
        return msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError:
        kind = {int: "a whole number", float: "a number", bool: "true or false"}
        raise InvalidSetting(
            f"{name} must be {kind.get(wanted, 'text')}, not {shown(value)}", field=name
        ) from None


def _replaced(settings: Settings, name: str, value: Any) -> Settings:
    """Return the settings with a new value of the setting `name`.

    Raises `InvalidSetting` if the value is not valid together with the other settings.
    """
    replace = msgspec.structs.replace
    if prefix := _prefix_of(name):
        if prefix == WEIGHT:
            check_number(name, value, 0.001, 1_000)
        elif prefix == LIMIT:
            parse_amounts(name, value)
        kept = NAMED[prefix][0]
        values = {**getattr(settings.bulk, kept), name.removeprefix(prefix): value}
        return replace(settings, bulk=replace(settings.bulk, **{kept: values}))
    section, _, field = name.rpartition(".")
    try:
        if not section:
            return replace(settings, **{field: value})
        return replace(settings, **{section: replace(getattr(settings, section), **{field: value})})
    except InvalidSetting as error:
        text = str(error)
        said = f"{section}.{text}" if text.startswith(f"{field} ") else f"{name}: {text}"
        raise InvalidSetting(said, field=name) from None
