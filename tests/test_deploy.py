"""The files in deploy/ fit each other, their tools, and the commands, settings and times of dray itself."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dray.cli.main import cli
from dray.settings import load
from dray.settings.table import TABLE

DEPLOY = Path(__file__).parents[1] / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
DIRECTIVES = {
    "Unit": {"Description", "After", "Wants"},
    "Service": {
        "Type", "User", "WorkingDirectory", "EnvironmentFile", "ExecStart", "ExecReload", "KillMode",
        "TimeoutStopSec", "Restart", "RestartSec", "MemoryMax", "OOMPolicy", "NoNewPrivileges", "PrivateTmp",
        "ProtectSystem", "ProtectHome", "StateDirectory",
    },
    "Install": {"WantedBy"},
}  # fmt: skip
"""Those of systemd's manual that are used."""
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "STOPSIGNAL", "HEALTHCHECK", "CMD"}
GRACE = load({}, app_name="shop", environ={}).settings.shutdown_grace / 1000


def check_command(words: list[str]) -> None:
    """A command line of dray that its own parser takes."""
    assert Path(words[0]).name == "dray", words
    command: click.Command = cli
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, words
        command, rest = found, rest[1:]
    command.make_context("dray", list(rest))


def check_variables(names: Iterator[str] | list[str]) -> None:
    for name in names:
        setting = name.removeprefix("DRAY_").lower()
        assert not name.startswith("DRAY_") or setting in TABLE or setting == "app", name


def test_there_is_something_to_look_at() -> None:
    assert len(UNITS) == 3
    assert len(MANIFESTS) == 6


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_units_have_known_directives_and_commands(file: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(file)
    assert set(unit.sections()) == set(DIRECTIVES)
    for section in unit.sections():
        assert set(unit[section]) <= DIRECTIVES[section]
    service = unit["Service"]
    check_command(shlex.split(service["ExecStart"]))
    assert float(service["TimeoutStopSec"]) > GRACE
    assert service["User"] != "root"
    assert service["EnvironmentFile"] == "/etc/dray/shop.env"
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectory"] == "shop"


def test_the_environment_of_units_is_made_of_settings() -> None:
    lines = (DEPLOY / "systemd/shop.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    check_variables(list(given))
    load({}, app_name="shop", environ=given)


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "docker/Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_image_runs_a_worker_without_root_or_shell() -> None:
    steps = instructions()
    names = [name for name, _ in steps]
    assert set(names) <= INSTRUCTIONS
    assert names[0] == "FROM"
    assert re.fullmatch(r"python:3\.\d+-slim", steps[0][1])
    given = dict(steps)
    assert given["USER"] == "dray"
    assert names.index("USER") > max(n for n, name in enumerate(names) if name == "RUN")
    assert given["STOPSIGNAL"] == "SIGTERM"
    check_command(json.loads(given["CMD"]))
    check_command(json.loads(given["HEALTHCHECK"].partition("CMD ")[2]))
    check_variables([word.split("=")[0] for word in shlex.split(given["ENV"])])


def test_the_image_installs_extras_that_exist() -> None:
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    (extras,) = re.findall(r'"dray\[(.*?)\]"', (DEPLOY / "docker/Dockerfile").read_text())
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", project, re.M), extra


def test_the_parts_of_compose_fit_together() -> None:
    parts = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
    services = parts["services"]
    assert set(services) == {"valkey", "worker", "server"}
    for name, service in services.items():
        assert ("build" in service) is not ("image" in service), name
        for other, needs in service.get("depends_on", {}).items():
            assert needs["condition"] == "service_healthy"
            assert "healthcheck" in services[other]
        if "build" in service:
            check_command(service["command"])
            check_variables(list(service["environment"]))
            assert int(service["stop_grace_period"].removesuffix("s")) > GRACE
            assert service["environment"]["DRAY_BROKER_URL"].startswith("valkey://valkey:6379")
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in parts["volumes"]
    # What other machines can reach needs a key, and this one publishes to itself only.
    assert "DRAY_API_KEYS" in services["server"]["environment"]
    assert all(port.startswith("127.0.0.1:") for port in services["server"]["ports"])
    # What dray doctor warns of.
    assert {"noeviction", "--appendonly"} <= set(services["valkey"]["command"])


def manifests() -> list[dict[str, Any]]:
    return [one for file in MANIFESTS for one in yaml.safe_load_all(file.read_text())]


def deployments() -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] == "Deployment"]


def test_manifests_are_of_known_kinds_and_have_names_of_their_own() -> None:
    kinds = {"ConfigMap": "v1", "Secret": "v1", "Service": "v1", "Deployment": "apps/v1"}
    kinds["NetworkPolicy"] = "networking.k8s.io/v1"
    kinds["HorizontalPodAutoscaler"] = "autoscaling/v2"
    for one in manifests():
        assert one["apiVersion"] == kinds[one["kind"]]
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests()]
    assert len(names) == len(set(names))
    for one in manifests():
        if one["kind"] in ("ConfigMap", "Secret"):
            check_variables(list(one.get("data") or one["stringData"]))


@pytest.mark.parametrize("deployment", deployments(), ids=lambda one: str(one["metadata"]["name"]))
def test_deployments_run_dray_with_probes_bounds_and_no_rights(deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert pod["terminationGracePeriodSeconds"] > GRACE
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    check_command(container["command"])
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
    assert pod["volumes"] == [{"name": container["volumeMounts"][0]["name"], "emptyDir": {}}]
    assert {"requests", "limits"} <= set(container["resources"])
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in (container["readinessProbe"], container.get("livenessProbe")):
        if probe is None:
            continue
        if "exec" in probe:
            check_command(probe["exec"]["command"])
        else:
            assert probe["httpGet"]["path"] in ("/healthz", "/readyz")
            assert probe["httpGet"]["port"] in ports
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    sources = {(kind, one[kind]["name"]) for one in container["envFrom"] for kind in one}
    assert sources == {("configMapRef", "dray"), ("secretRef", "dray")}


def test_no_secret_is_shipped() -> None:
    (secret,) = [one for one in manifests() if one["kind"] == "Secret"]
    assert secret["stringData"]["DRAY_API_KEYS"] == ""
    assert "@" not in secret["stringData"]["DRAY_BROKER_URL"]
    for file in DEPLOY.rglob("*.*"):
        assert "change-me" not in file.read_text("utf-8"), file


def test_policies_close_all_parts_and_let_clients_reach_the_server_alone() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in manifests() if one["kind"] == "NetworkPolicy"}
    everything, server = policies["dray"], policies["dray-server"]
    for deployment in deployments():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert everything["podSelector"]["matchLabels"].items() <= labels.items()
        is_server = deployment["metadata"]["name"] == "dray-server"
        assert (server["podSelector"]["matchLabels"].items() <= labels.items()) is is_server
        if is_server:
            (container,) = deployment["spec"]["template"]["spec"]["containers"]
            ports = {port["name"] for port in container["ports"]}
            assert {port["port"] for port in server["ingress"][0]["ports"]} == ports
    assert everything["ingress"] == []
    assert everything["policyTypes"] == ["Ingress"], "what tasks connect to is the app's business"


def test_the_service_leads_to_ports_of_the_server() -> None:
    (service,) = [one for one in manifests() if one["kind"] == "Service"]
    (server,) = [one for one in deployments() if one["metadata"]["name"] == "dray-server"]
    template = server["spec"]["template"]
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    names = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == names
