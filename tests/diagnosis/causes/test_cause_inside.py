from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongDecayFacts, StrongWeightDecay
from mlflow_stability.vocabulary.result import Cause, Finding, Severity
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT, AT = 400, 250


def measured(quantity: str, place: str, values: list[float], every: int = 50) -> Metric:
    meaning = Meaning(quantity, place, is_known=True)
    return metric_of(f"{quantity}@{place}", values, meaning=meaning, steps=np.arange(len(values)) * every)


def diverging() -> np.ndarray:
    losses = falling(COUNT)
    losses[AT:] *= 1 + np.minimum(4, (np.arange(AT, COUNT) - AT) / 10)
    return losses


def with_signals(*more: Metric, events: list[Finding] | None = None, losses: np.ndarray | None = None) -> RunHistory:
    norms = np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    metrics = [metric_of("loss", diverging() if losses is None else losses), metric_of("grad_norm", norms)]
    return run_of(*metrics, metric_of("learning_rate", np.full(COUNT, 3e-4)), *more, events=events)


def named(history: RunHistory) -> Cause:
    diagnosis = diagnosis_of(history)
    assert diagnosis.cause is not None, diagnosis.cannot_tell
    return diagnosis.cause


@pytest.mark.parametrize(
    ("quantity", "well", "ill", "name", "certainty"),
    [
        ("attention_max_logit", [3.0, 3, 4, 4, 4], [3.0, 3, 9, 40, 210], "attention_logit_growth", "likely"),
        ("attention_entropy", [0.8, 0.8, 0.8, 0.7, 0.7], [0.8, 0.8, 0.5, 0.1, 0.01], "attention_collapse", "likely"),
        ("sdr_unique_ratio", [0.9, 0.9, 0.9, 0.9, 0.9], [0.9, 0.9, 0.6, 0.4, 0.2], "sdr_collapse", "likely"),
        ("adam_rms", [0.9, 0.9, 1.0, 0.9, 1.0], [0.9, 0.9, 1.0, 1.0, 3.1], "optimizer_lag", "possible"),
        ("router_max_logit", [2.0, 3, 4, 5, 5], [2.0, 3, 9, 40, 90], "router_logit_growth", "possible"),
        ("router_load_entropy", [0.9, 0.9, 0.9, 0.9, 0.9], [0.9, 0.9, 0.7, 0.5, 0.3], "router_collapse", "possible"),
        ("activation_dead", [0.1, 0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.5, 0.8], "dead_units", "possible"),
        ("activation_saturation", [0.0] * 5, [0.0, 0, 0.2, 0.5, 0.9], "saturated_activation", "possible"),
        ("effective_rank", [30.0] * 5, [30.0, 30, 20, 9, 1.2], "representation_collapse", "possible"),
    ],
)
def test_an_earlier_change_inside_the_model_is_the_cause_and_is_named_with_its_place(
    quantity: str, well: list[float], ill: list[float], name: str, certainty: str
) -> None:
    cause = named(with_signals(measured(quantity, "blocks.0", well), measured(quantity, "blocks.1", ill)))
    assert (cause.name, cause.certainty, cause.place) == (name, certainty, "blocks.1")
    assert cause.evidence == ("1 of 2 measured places show it",)


def heads(*last: float) -> list[Metric]:
    return [
        measured("attention_entropy", f"blocks.1.head_{head}", [0.9, 0.8, 0.6, 0.4, value])
        for head, value in enumerate(last)
    ]


def test_half_of_the_heads_collapsed_is_a_cause_and_a_single_head_is_not() -> None:
    assert diagnosis_of(with_signals(*heads(0.03, 0.4, 0.5, 0.4))).cause is None
    cause = named(with_signals(*heads(0.03, 0.4, 0.02, 0.4)))
    assert (cause.name, cause.place) == ("attention_collapse", "blocks.1.head_2")
    assert cause.evidence == ("2 of 4 measured places show it",)


def test_an_optimizer_that_lags_at_the_step_of_the_divergence_is_not_its_cause() -> None:
    start = min(finding.start for finding in diagnosis_of(with_signals()).findings)

    def lagging(at: int) -> RunHistory:
        values = [9.0 if step == at else 1.0 for step in range(start + 1)]
        return with_signals(measured("adam_rms", "blocks.1", values[: at + 1], every=1))

    assert named(lagging(start - 1)).name == "optimizer_lag"
    assert diagnosis_of(lagging(start)).cause is None


def test_a_later_change_inside_the_model_is_not_the_cause() -> None:
    later = measured("attention_max_logit", "blocks.1", [3.0, 3, 3, 3, 3, 3, 300, 300])
    assert diagnosis_of(with_signals(later)).cause is None


def test_shrinking_weights_are_attributed_to_weight_decay_and_its_change_is_quoted() -> None:
    shrinking = metric_of(
        "param_norm",
        [62.0] * 26 + [8.0] + [1.0] * 13,
        meaning=Meaning("param_norm", "", is_known=True),
        steps=np.arange(40) * 10,
    )
    message = "weight_decay of AdamW went from 0.01 to 100.0, seen at step 260."
    changed = at_step(260, "configuration_changed", Severity.INFO, message)
    cause = named(with_signals(shrinking, events=[changed]))
    assert cause.name == "weight_decay"
    assert "from 62 at step 250 to 8 at step 260" in cause.statement
    assert message in cause.statement


@pytest.mark.parametrize(
    ("last", "decay", "rate", "cause"),
    [(20.0, 10.0, 2e-3, "weight_decay"), (20.0, 0.01, 2.0, ""), (62.0, 10.0, 2e-3, ""), (20.0, None, 2e-3, "")],
    ids=["strong decay", "high learning rate", "growing weights", "usual decay"],
)
def test_weights_that_shrink_slowly_under_too_strong_a_decay_are_attributed_to_it(
    last: float, decay: float | None, rate: float, cause: str
) -> None:
    norms = metric_of(
        "param_norm",
        np.linspace(60.0, last, 40).tolist(),
        meaning=Meaning("param_norm", "", is_known=True),
        steps=np.arange(40) * 10,
    )
    facts = [] if decay is None else [StrongDecayFacts(decay, rate)]
    events = [Finding.at(fact, 10, Severity.WARNING, remedies=StrongWeightDecay.remedies) for fact in facts]
    diagnosis = diagnosis_of(with_signals(norms, events=events))
    assert ("" if diagnosis.cause is None else diagnosis.cause.name) == cause
    if diagnosis.cause is not None:
        assert "removes 2% of each weight per step" in diagnosis.cause.statement


def test_a_setting_changed_just_before_is_a_possible_cause_and_one_changed_long_before_is_not() -> None:
    changes = [
        at_step(at, "configuration_changed", Severity.INFO, f"betas of AdamW went from a to b, seen at step {at}.")
        for at in (30, 240)
    ]
    near, far = named(with_signals(events=changes[1:])), diagnosis_of(with_signals(events=changes[:1]))
    assert (near.name, near.certainty) == ("configuration_changed", "possible")
    assert far.cause is None


def test_gradients_that_grow_like_a_sum_are_not_blamed_on_an_undetected_missing_zero_grad() -> None:
    dice = np.random.default_rng(3)
    norms = 0.3 * np.exp(dice.normal(0, 0.2, COUNT))
    norms[AT - 12 : AT + 1] = 0.28 * np.arange(1, 14) ** 0.8
    norms[AT + 1 :] = norms[AT] * 1.3 ** np.minimum(40, np.arange(1, COUNT - AT))
    losses = falling(COUNT, noise=0.1, last=1.0)
    losses[AT + 1 :] *= 1.2 ** np.minimum(30, np.arange(1, COUNT - AT))
    finding = at_step(AT, "gradient_explosion", Severity.WARNING, "grad_norm stands out.", evidence={"grad_norm": 2.0})
    cause = named(run_of(metric_of("loss", losses), metric_of("grad_norm", norms), events=[finding]))
    assert cause.name == "gradient_explosion"


@pytest.mark.parametrize(("since", "cause"), [(AT - 30, "gradients_not_cleared"), (AT + 200, "")])
def test_a_detected_missing_zero_grad_is_the_certain_cause_of_later_findings(since: int, cause: str) -> None:
    message = f"Gradients are not cleared since step {since}: each step used those of the step before as well, 3 steps."
    seen = at_step(since, "missing_zero_grad", Severity.WARNING, message)
    result = diagnosis_of(with_signals(events=[seen])).cause
    assert ("" if result is None else result.name) == cause
    if result is not None:
        assert (result.certainty, result.since) == ("certain", since)
        assert (
            f"not cleared from step {since} on; each step used those of the steps before it as well" in result.statement
        )


def test_gradients_that_multiply_are_not_taken_for_a_sum() -> None:
    norms = 0.3 * np.exp(np.random.default_rng(3).normal(0, 0.1, COUNT))
    norms[AT - 12 :] = 0.25 * 1.4 ** np.minimum(40, np.arange(COUNT - AT + 12))
    losses = falling(COUNT)
    finding = at_step(AT, "gradient_explosion", Severity.WARNING, "grad_norm stands out.", evidence={"grad_norm": 2.0})
    cause = diagnosis_of(run_of(metric_of("loss", losses), metric_of("grad_norm", norms), events=[finding])).cause
    assert cause is None or cause.name != "gradients_not_cleared"


def test_the_layer_that_exploded_most_is_named() -> None:
    losses, norms = diverging(), np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    norms[AT - 4 :] *= 40
    layers = [
        measured("grad_norm", "a", [1.0, 1.1, 0.9, 1.0, 1.0, 1.2]),
        measured("grad_norm", "b", [1.0, 1.1, 0.9, 1.0, 1.0, 60.0]),
    ]
    cause = named(run_of(metric_of("loss", losses), metric_of("grad_norm", norms), *layers))
    assert (cause.name, cause.place) == ("gradient_explosion", "b")


def test_the_layer_where_the_gradient_ends_is_named() -> None:
    flat = 3.3 * np.exp(np.random.default_rng(0).normal(0, 0.005, COUNT))
    dying = np.exp(-np.arange(COUNT) / 20.0) + 1e-7
    layers = [
        measured("grad_norm", "first", [1e-9] * 6),
        measured("grad_norm", "middle", [1e-8] * 6),
        measured("grad_norm", "last", [0.1] * 6),
    ]
    cause = named(run_of(metric_of("loss", flat), metric_of("grad_norm", dying), *layers))
    assert (cause.name, cause.place) == ("vanishing_gradients", "middle")


def test_the_end_of_a_process_is_not_the_cause_of_its_divergence() -> None:
    jumped = np.full(COUNT, 3e-4)
    jumped[345:] *= 30
    losses = falling(COUNT)
    losses[350:] *= 1 + (np.arange(350, COUNT) - 350)
    run = run_of(metric_of("loss", losses), metric_of("learning_rate", jumped), outcome="killed")
    assert named(run).name == "learning_rate_jump"


def test_few_codes_for_few_inputs_are_not_a_cause() -> None:
    codes = measured("sdr_unique_ratio", "encoder", [0.2, 0.2, 0.2, 0.19, 0.2])
    inputs = measured("sdr_input_ratio", "encoder", [0.2, 0.2, 0.2, 0.2, 0.2])
    assert named(with_signals(codes)).name == "sdr_collapse"
    cause = diagnosis_of(with_signals(codes, inputs)).cause
    assert cause is None or cause.name != "sdr_collapse"
