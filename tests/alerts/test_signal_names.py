from __future__ import annotations

import json
import re
from typing import Any

import pytest
from architecture.repository import ROOT
from prometheus_client.validation import _validate_metric_name

from mlflow_stability.alerts.run_metrics import EVERYTHING, FAMILIES, STEP_DURATION

DASHBOARD = ROOT / "examples" / "grafana_dashboard.json"
CATALOGUE = {
    "llm_training_loss",
    "llm_validation_loss",
    "llm_gradient_norm",
    "llm_tokens_per_second",
    "llm_model_flops_utilization",
    "llm_gpu_memory_bytes",
    "llm_training_steps_total",
    "llm_tokens_processed_total",
    "llm_loss_spikes_total",
    "llm_gradient_spikes_total",
    "llm_step_duration_seconds",
}
_METRIC = re.compile(r"\bllm_\w+")


def panels() -> list[dict[str, Any]]:
    by_name: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return by_name


@pytest.mark.parametrize("attribute", ["prometheus", "otel"])
def test_each_name_is_given_once_for_each_type(attribute: str) -> None:
    names = [(getattr(names, attribute), names.type) for names in EVERYTHING]
    assert len(set(names)) == len(names)


def test_signals_that_share_a_name_are_alike_but_for_their_type() -> None:
    shared = [family for family in FAMILIES if len(family) > 1]
    assert [{names.type for names in family} for family in shared] == [{"allocated", "reserved", "peak"}]
    for family in shared:
        assert len({(names.otel, names.unit, names.counter, names.by_device) for names in family}) == 1


def test_names_are_valid_and_counters_end_as_counters_do() -> None:
    for metric in EVERYTHING:
        _validate_metric_name(metric.prometheus)
        assert re.fullmatch(r"[a-z][a-z0-9_.]*", metric.otel)
        assert metric.prometheus.endswith("_total") == metric.counter
        assert metric.meaning


def test_names_that_dashboards_rely_on_are_there() -> None:
    assert {item.prometheus for item in EVERYTHING} >= CATALOGUE


def test_the_grafana_dashboard_asks_for_metrics_that_are_exported() -> None:
    histogram = STEP_DURATION.prometheus
    exported = {item.prometheus for item in EVERYTHING} | {f"{histogram}_{end}" for end in ("bucket", "sum", "count")}
    text = DASHBOARD.read_text()
    asked = set(_METRIC.findall(text))
    assert asked <= exported
    assert {panel["title"] for panel in panels()} >= {"Loss", "Gradient norm", "Step time", "Device memory"}


def test_the_panels_of_the_dashboard_do_not_overlap_and_have_a_unit_and_a_source() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all("$run" in target["expr"] for target in panel["targets"])
