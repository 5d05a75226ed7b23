"""What is in deploy/ fits the program: its commands, its variables, its metrics."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml  # type: ignore[import-untyped]

from heatsink import connect
from heatsink.bulk import Actions
from heatsink.bulk.settings import ConsumerSettings
from heatsink.cli import main
from heatsink.client.prometheus import WorkCollector
from heatsink.primitives.connections import LOOPBACK_NAMES
from heatsink.server.api.metrics import RequestCollector, metrics_of
from heatsink.server.api.requests import RequestCounts, RequestLimits
from heatsink.server.commands.door import settings_of
from heatsink.server.commands.worker import find_actions
from heatsink.server.door.gate import DoorLimits
from heatsink.server.door.tables import read_tables

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DOOR = DEPLOY / "door"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
GRACE_S = {
    "coordinator": 5.0,  # it gives back its lease
    "worker": ConsumerSettings().grace_s,
    "door": DoorLimits().grace_s,
    "serve": 2 * RequestLimits().grace_s,  # requests, then items
}


class Launch(NamedTuple):
    """A command line as something in deploy/ runs it, and how long it may take to end."""

    origin: str
    arguments: list[str]
    variables: dict[str, str]
    stops_in_s: float | None


def documents(file: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each is not None]


def in_compose() -> Iterator[Launch]:
    services = documents(DEPLOY / "compose" / "compose.yaml")[0]["services"]
    for name, service in services.items():
        if service["image"] == "heatsink":
            given = service.get("environment", {})
            variables = {key: re.sub(r"\$\{.*\}", "s3cret-enough", given[key]) for key in given}
            stops = float(service.get("stop_grace_period", "10s").rstrip("s"))
            yield Launch(f"compose {name}", service["command"], variables, stops)


def in_kubernetes() -> Iterator[Launch]:
    secret = documents(KUBERNETES / "secret.example.yaml")[0]["stringData"]
    kustomization = documents(KUBERNETES / "kustomization.yaml")[0]
    for file in kustomization["resources"]:
        for each in documents(KUBERNETES / file):
            if each["kind"] == "Deployment":
                pod = each["spec"]["template"]["spec"]
                (container,) = pod["containers"]
                variables = {
                    env["name"]: secret[env["valueFrom"]["secretKeyRef"]["key"]]
                    for env in container["env"]
                }
                stops = pod["terminationGracePeriodSeconds"]
                yield Launch(f"kubernetes {file}", container["args"], variables, stops)


def in_door() -> Iterator[Launch]:
    secret = documents(KUBERNETES / "secret.example.yaml")[0]["stringData"]
    (pod,) = [each["spec"]["template"]["spec"] for each in documents(DOOR / "sidecar.yaml")]
    (door,) = pod["initContainers"]
    variables = {
        env["name"]: secret[env["valueFrom"]["secretKeyRef"]["key"]] for env in door["env"]
    }
    stops = pod["terminationGracePeriodSeconds"]
    yield Launch("door sidecar", door["args"], variables, stops)
    service = documents(DOOR / "compose.yaml")[0]["services"]["door"]
    stops = float(service["stop_grace_period"].rstrip("s"))
    yield Launch("door compose", service["command"], service["environment"], stops)


def in_systemd() -> Iterator[Launch]:
    lines = (DEPLOY / "systemd" / "heatsink.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    for unit in UNITS:
        text = unit.read_text()
        (command,) = re.findall(r"^ExecStart=\S+/heatsink (.*)$", text, re.MULTILINE)
        (stops,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
        arguments = command.split()
        own = {k: v for k, v in variables.items() if k.split("_")[1].lower() == arguments[0]}
        yield Launch(f"systemd {unit.name}", arguments, own, float(stops))


def in_dockerfile() -> Iterator[Launch]:
    (command,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    token = {"HEATSINK_SERVE_TOKEN": "admin:s3cret-enough"}
    yield Launch("Dockerfile", json.loads(command), token, None)


LAUNCHES = [*in_compose(), *in_kubernetes(), *in_door(), *in_systemd(), *in_dockerfile()]


@pytest.fixture(params=LAUNCHES, ids=lambda launch: launch.origin)
def launch(request: pytest.FixtureRequest) -> Launch:
    found: Launch = request.param
    return found


def command_of(launch: Launch) -> click.Command:
    """`heatsink door` is short for `heatsink door serve`."""
    command = main.commands[launch.arguments[0]]
    return command.commands["serve"] if isinstance(command, click.Group) else command


def parsed(launch: Launch) -> click.Context:
    name, *arguments = launch.arguments
    parent = click.Context(main, info_name="heatsink", auto_envvar_prefix="HEATSINK")
    command = command_of(launch)
    return command.make_context(name, arguments, parent=parent, **command.context_settings)


def test_a_command_line_is_one_the_program_takes(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in launch.variables.items():
        monkeypatch.setenv(name, value)
    values = parsed(launch).params
    assert values.get("host", "localhost") in LOOPBACK_NAMES or values["token"]


def test_a_variable_is_one_the_command_reads(launch: Launch) -> None:
    command = command_of(launch)
    prefix = f"HEATSINK_{launch.arguments[0].upper()}_"
    known = {f"{prefix}{(each.name or '').upper()}" for each in command.params}
    assert set(launch.variables) <= known


def test_there_is_time_for_a_graceful_end(launch: Launch) -> None:
    if launch.stops_in_s is not None:
        assert launch.stops_in_s > GRACE_S[launch.arguments[0]]


def test_every_yaml_and_json_file_can_be_read() -> None:
    for file in DEPLOY.rglob("*.yaml"):
        assert documents(file), file
    for file in DEPLOY.rglob("*.json"):
        assert json.loads(file.read_text()), file


def test_every_manifest_is_part_of_the_kustomization() -> None:
    listed = documents(KUBERNETES / "kustomization.yaml")[0]["resources"]
    others = {"kustomization.yaml", "secret.example.yaml"}
    assert {file.name for file in KUBERNETES.glob("*.yaml")} - others == set(listed)


def test_services_and_budgets_select_pods_that_exist() -> None:
    every = [each for file in KUBERNETES.glob("*.yaml") for each in documents(file)]
    pods = [d["spec"]["template"]["metadata"]["labels"] for d in every if d["kind"] == "Deployment"]
    for each in every:
        if each["kind"] == "Service":
            assert each["spec"]["selector"] in pods
        if each["kind"] == "PodDisruptionBudget":
            assert each["spec"]["selector"]["matchLabels"] in pods


def test_the_actions_of_the_compose_file_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.util.find_spec("actions") is None
    monkeypatch.syspath_prepend(DEPLOY / "compose")
    assert "say" in find_actions("actions:actions")


async def emitted() -> set[str]:
    """The names of all samples, from the types that our own pages of metrics declare."""
    async with connect("memory://") as hs:
        work = WorkCollector(hs.worker(Actions()))
        text = metrics_of(hs, RequestCollector(RequestCounts()), work).text().decode()
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {f"{name}{part}" for part in parts}
    return names


def expressions() -> list[str]:
    groups = documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"]
    alerts = [rule["expr"] for group in groups for rule in group["rules"]]
    board = json.loads((DEPLOY / "grafana" / "heatsink.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    return alerts + shown


async def test_alerts_and_the_dashboard_use_metrics_that_we_emit() -> None:
    known = await emitted()
    for expression in expressions():
        used = set(re.findall(r"heatsink_\w+", expression))
        assert used, expression
        assert used <= known, used - known


def test_an_alert_says_what_it_means_and_how_bad_it_is() -> None:
    for group in documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert set(rule["annotations"]) == {"summary", "description", "runbook"}
            assert rule["expr"].count("(") == rule["expr"].count(")")


def test_panels_have_places_of_their_own() -> None:
    board = json.loads((DEPLOY / "grafana" / "heatsink.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert len(set(places)) == len(places)


def test_the_page_says_what_to_do_about_every_alert() -> None:
    page = (DEPLOY.parent / "docs" / "operations" / "alerts.md").read_text()
    groups = documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert re.findall(r"^## (Heatsink\w+)$", page, re.MULTILINE) == list(alerts)
    for name, rule in alerts.items():
        runbook = f"docs/operations/alerts.md#{name.lower()}"
        assert rule["annotations"]["runbook"] == runbook


def test_the_tables_of_the_door_can_be_read() -> None:
    assert [table.name for table in read_tables(DOOR / "tables.toml")] == ["chat"]


def test_the_door_takes_its_settings(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if launch.arguments[0] != "door":
        return
    monkeypatch.chdir(tmp_path)
    for name, value in launch.variables.items():
        monkeypatch.setenv(name, value)
    assert settings_of(parsed(launch).params).store
