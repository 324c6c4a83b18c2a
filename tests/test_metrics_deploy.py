"""The dashboard and the alert rules refer only to metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.observe.table import PREFIX, TABLE, full_name

DEPLOY = Path(__file__).parents[1] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dray.json").read_text("utf-8"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
TARGET_LABELS = {"job", "instance"}
"""Added by Prometheus."""
_METRIC = re.compile(r"\b(dray_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def names() -> dict[str, set[str]]:
    """Every name that a query may use, with its labels."""
    found: dict[str, set[str]] = {"up": set()}
    for name, about in TABLE.items():
        if about.kind == "histogram":
            found |= {f"{PREFIX}{name}_{part}": set(about.labels) for part in ("sum", "count")}
            found[f"{PREFIX}{name}_bucket"] = {*about.labels, "le"}
        else:
            found[full_name(name)] = set(about.labels)
    return found


def queries() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def check(query: str) -> None:
    known = names()
    used = _METRIC.findall(query)
    assert used, query
    labels: set[str] = set()
    for name, matchers in used:
        assert name in known, f"{name} in {query}"
        here = known[name] | TARGET_LABELS
        assert set(_MATCHER.findall(matchers)) <= here, query
        labels |= here
    for grouping in _GROUPING.findall(query):
        assert {label.strip() for label in grouping.split(",")} <= labels, query


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_a_query_refers_to_what_exists(where: str, query: str) -> None:
    check(query)
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize(
    "wrong", ["dray_runs[5m]", 'dray_runs_total{job="a", id="b"}', "sum by (group) (dray_queue_ready)", "1"]
)
def test_a_query_that_refers_to_nothing_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check(wrong)


ADAPTER: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yml").read_text("utf-8"))[
    "externalRules"
]


@pytest.mark.parametrize("rule", ADAPTER, ids=lambda rule: str(rule["name"]["as"]))
def test_the_adapter_offers_metrics_that_exist(rule: dict[str, Any]) -> None:
    check(rule["seriesQuery"])
    check(rule["metricsQuery"].replace("<<.LabelMatchers>>", 'queue="default"'))
    assert rule["metricsQuery"].count("<<.LabelMatchers>>") == 1
    assert rule["name"]["as"] in rule["seriesQuery"]


def test_workers_are_scaled_by_a_metric_that_the_adapter_offers() -> None:
    hpa = yaml.safe_load((DEPLOY / "kubernetes" / "worker-autoscaler.yaml").read_text("utf-8"))["spec"]
    worker = yaml.safe_load((DEPLOY / "kubernetes" / "worker.yaml").read_text("utf-8"))
    target = hpa["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (worker["kind"], worker["metadata"]["name"])
    assert hpa["minReplicas"] <= worker["spec"]["replicas"] <= hpa["maxReplicas"]
    offered = {rule["name"]["as"]: rule["metricsQuery"] for rule in ADAPTER}
    for metric in hpa["metrics"]:
        wanted = metric["external"]["metric"]
        assert wanted["name"] == full_name("queue_oldest_ready_seconds")
        for label in wanted["selector"]["matchLabels"]:
            assert label in names()[wanted["name"]]
            assert f"by ({label})" in offered[wanted["name"]]


def test_rules_are_complete_and_named_once() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 10
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        kept = {
            label.strip() for by in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in by.split(",")
        }
        assert shown <= kept | ({"instance"} if rule["expr"].startswith("up") else set()), rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert re.fullmatch(r"[a-z0-9-]{1,40}", DASHBOARD["uid"])
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert {"datasource", "job", "queue", "task"} == variables
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {DASHBOARD["uid"], "${datasource}"}
    assert set(re.findall(r"\$\{?(\w+)", text)) <= variables | {"__rate_interval", "__all"}


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_scrape_configuration_finds_its_rules_and_the_jobs_that_they_name() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    for file in config["rule_files"]:
        assert (DEPLOY / "prometheus" / file).exists()
    jobs = {scrape["job_name"] for scrape in config["scrape_configs"]}
    assert {job for rule in RULES for job in re.findall(r'job="([^"]*)"', rule["expr"])} <= jobs
