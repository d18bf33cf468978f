"""What goes wrong inside with troubles that have no sharp beginning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.gradients.layers import DeadLayerFacts
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Metric
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 400


def measured(quantity: str, place: str, values: list[float], steps: list[int]) -> Metric:
    meaning = Meaning(quantity, place, is_known=True)
    return metric_of(f"{quantity}@{place}", values, meaning=meaning, steps=np.array(steps))


def standing() -> Metric:
    return metric_of("loss", 3.9 * np.exp(np.random.default_rng(0).normal(0, 0.005, COUNT)))


def narrow(values: list[float], heads: int = 2) -> list[Metric]:
    steps = [10, 25, 50, 75, 100, 300][: len(values)]
    return [measured("attention_entropy", f"blocks.0.head_{head}", values, steps) for head in range(heads)]


def test_a_collapse_measured_soon_after_a_plateau_began_is_its_cause() -> None:
    diagnosis = diagnosis_of(run_of(standing(), *narrow([0.16, 0.05, 0.02, 0.02, 0.02]), events=[]))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.place) == ("attention_collapse", "blocks.0.head_0")


def test_a_collapse_measured_only_late_in_a_plateau_is_not_its_cause() -> None:
    diagnosis = diagnosis_of(run_of(standing(), *narrow([0.9, 0.9, 0.9, 0.9, 0.9, 0.01]), events=[]))
    assert diagnosis.outcome == "stuck"
    assert diagnosis.cause is None


@pytest.mark.parametrize(("other", "name"), [(0.0, "attention_collapse"), (0.6, None)])
def test_a_layer_with_all_heads_collapsed_from_the_start_is_a_possible_cause(other: float, name: str | None) -> None:
    beside = measured("attention_entropy", "blocks.0.head_2", [other] * 5, [10, 25, 50, 75, 100])
    diagnosis = diagnosis_of(run_of(standing(), *narrow([1e-10, 0, 0, 7e-5, 0]), beside, events=[]))
    assert (diagnosis.cause.name if diagnosis.cause else None) == name
    if diagnosis.cause is not None:
        assert (diagnosis.cause.certainty, diagnosis.cause.place) == ("possible", "blocks.0")


def bits(at: int, *, after: float = 0.2) -> Metric:
    steps = [50, 100, 150, 200, at, at + 50]
    return measured("sdr_bit_usage", "encoder", [0.95, 0.94, 0.95, 0.91, after, 0.06], steps)


def test_a_layer_is_not_explained_by_what_came_long_after_its_gradient_was_gone() -> None:
    steps = list(range(10, 401, 10))
    dead = [0.0 if step < 390 else 0.9 for step in steps]
    units = measured("activation_dead", "blocks.1", dead, steps)
    later = DeadLayerFacts("blocks.0", 0.0, 40, first_step=10, rounds=5, steps=400)

    def named(first_step: int) -> str | None:
        facts = replace(later, first_step=first_step)
        event = at_step(400, "dead_layer", Severity.WARNING, place="blocks.0", facts=facts)
        diagnosis = diagnosis_of(run_of(metric_of("loss", falling(COUNT + 1)), units, events=[event]))
        (finding,) = [item for item in diagnosis.findings if item.kind == "dead_layer"]
        return finding.cause.name if finding.cause is not None else None

    assert named(first_step=400) == "dead_units"
    assert named(first_step=10) is None


def creeping() -> Metric:
    losses = falling(COUNT)
    losses[226:] *= 1 + np.minimum(4, (np.arange(226, COUNT) - 225) / 10)
    return metric_of("loss", losses)


def test_codes_that_had_narrowed_when_they_were_next_looked_at_are_a_possible_cause() -> None:
    diagnosis = diagnosis_of(run_of(creeping(), bits(232), events=[]))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.certainty, diagnosis.cause.place) == (
        "sdr_collapse",
        "possible",
        "encoder",
    )
    assert "0.2 of their bits were ever on, 0.95 at the start" in diagnosis.cause.statement
    assert any(
        value == "normal at step 200, changed at step 232; the loss rose from step 228 on"
        for value in diagnosis.cause.evidence
    )


@pytest.mark.parametrize("later", [bits(290), bits(232, after=0.9)])
def test_codes_found_narrow_long_after_the_loss_rose_are_not_the_cause(later: Metric) -> None:
    assert diagnosis_of(run_of(creeping(), later, events=[])).cause is None


def alike(at: int, norm: float) -> list[Metric]:
    steps = [50, 100, 150, 200, at, at + 50]
    weights = metric_of("param_norm", np.where(np.arange(COUNT) < 240, 40.0, norm))
    return [measured("sdr_unique_ratio", "encoder", [1.0, 1.0, 1.0, 1.0, 0.02, 0.02], steps), weights]


@pytest.mark.parametrize(("norm", "name"), [(42.0, "sdr_collapse"), (60.0, None), (np.nan, None)])
def test_codes_that_became_alike_on_the_same_weights_are_a_possible_cause(norm: float, name: str | None) -> None:
    diagnosis = diagnosis_of(run_of(creeping(), *alike(290, norm), events=[]))
    assert (diagnosis.cause.name if diagnosis.cause else None) == name
    if diagnosis.cause is not None:
        assert diagnosis.cause.certainty == "possible"
        assert "0.02 of them were unique, 1 at the start" in diagnosis.cause.statement


def test_inputs_that_became_alike_are_not_a_collapse_of_codes() -> None:
    steps = [50, 100, 150, 200, 290, 340]
    inputs = measured("sdr_input_ratio", "encoder", [1.0, 1.0, 1.0, 1.0, 0.02, 0.02], steps)
    assert diagnosis_of(run_of(creeping(), *alike(290, 42.0), inputs, events=[])).cause is None


def test_a_changed_setting_takes_precedence_over_a_signal_that_changed_later() -> None:
    changed = at_step(220, "configuration_changed", Severity.INFO, "betas of AdamW went from a to b, seen at step 220.")
    diagnosis = diagnosis_of(run_of(creeping(), bits(232), events=[changed]))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "configuration_changed"


def test_vanishing_gradients_that_were_reported_are_the_cause_of_the_plateau() -> None:
    norms = metric_of("grad_norm", np.full(COUNT, 0.6))
    finding = at_step(100, "gradient_vanishing", Severity.WARNING, "grad_norm of stem is 1e-9 at step 100.", "stem")
    diagnosis = diagnosis_of(run_of(standing(), norms, events=[finding]))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.kind, diagnosis.cause.place) == (
        "vanishing_gradients",
        "plateau",
        "stem",
    )
    assert diagnosis_of(run_of(standing(), norms, events=[])).cause is None
