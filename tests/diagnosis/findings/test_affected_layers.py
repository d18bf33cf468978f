from __future__ import annotations

import numpy as np
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step, over_steps

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.findings.notes import with_affected_layers
from mlflow_stability.kinds.gradients.layers import LayerExplosionFacts
from mlflow_stability.vocabulary.result import Finding, Severity, Statement, Text
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

MEASURED = np.arange(100, 2001, 100)


def layered(quantity: str, values: dict[str, float], before: float = 1.0) -> RunHistory:
    metrics = [metric_of("loss", falling(2000))]
    for name, value in values.items():
        norms = np.where(MEASURED < 1000, before, value)
        meaning = Meaning(quantity, name, is_known=True)
        metrics.append(metric_of(f"{quantity}@{name}", norms, meaning=meaning, steps=MEASURED))
    return run_of(*metrics)


def about(kind: str, history: RunHistory, place: str = "a") -> Finding:
    statements = (Statement(Text("Said."), 1000),)
    episode = over_steps(kind, Severity.WARNING, 1000, 1000, 1000, place=place, statements=statements)
    return with_affected_layers([episode], history, {0: 0})[0]


def test_every_dead_layer_is_named_with_the_gradient_flow() -> None:
    text = about("dead_layer", layered("grad_norm", {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0}))
    assert text.message == "Said. Also in 2 other layers: b, d."
    assert text.metrics == {"gradient_flow": 0.25, "layer.b": 0.0, "layer.d": 0.0}


def test_only_layers_that_jumped_are_named() -> None:
    text = about("weight_spike", layered("param_norm", {"a": 30.0, "b": 20.0, "c": 2.0}))
    assert text.message == "Said. Also in 1 other layer: b."


def test_as_many_layers_are_named_as_the_finding_says_have_jumped() -> None:
    norms = {"a": 90.0, "b": 80.0, "c": 70.0, "d": 60.0, "e": 1.0}
    facts = LayerExplosionFacts(90.0, 1.0, 8.0, 20.0, 8.0, 3, 5, place="a")
    finding = over_steps("layer_explosion", Severity.WARNING, 1000, 1000, 1000, place="a", facts=facts)
    (result,) = with_affected_layers([finding], layered("grad_norm", norms), {0: 0})
    assert "3 of 5 layers jumped together. Also in 2 other layers: b, c." in result.message


def test_the_affected_layers_of_a_finding_on_the_whole_model_are_named() -> None:
    text = about("update_ratio_high", layered("update_ratio", {"a": 0.5, "b": 0.2, "c": 0.01}), place="")
    assert text.message == "Said. In 2 layers: a, b."


def test_the_message_names_five_of_many_layers_and_the_evidence_names_all() -> None:
    text = about("gradient_vanishing", layered("grad_norm", {f"l{n}": 1e-9 for n in range(12)} | {"head": 1.0}), "l0")
    assert text.message == "Said. Also in 11 other layers: l1, l2, l3, l4, l5 and 6 more."
    assert sum(name.startswith("layer.") for name in text.metrics) == 11


def test_without_values_by_layer_nothing_is_added() -> None:
    assert about("dead_layer", run_of(metric_of("loss", falling(2000)))).message == "Said."


def test_several_remarks_of_the_model_check_stay_several() -> None:
    texts = ("Frozen: a.", "Not in the optimizer: b.", "Not in the optimizer: b.")
    events = [at_step(1, "model_lint", Severity.INFO, item) for item in texts]
    history = run_of(metric_of("loss", falling(300)), events=events)
    remarks = [finding.message for finding in diagnosis_of(history).findings if finding.kind == "model_lint"]
    assert sorted(remarks) == ["Frozen: a.", "Not in the optimizer: b."]
