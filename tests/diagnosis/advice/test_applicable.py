from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step, changed, over_steps

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.diagnosis.advice import one_of_each_topic, remedies_of, with_fitting_remedies
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.recorded_settings import in_half_precision
from mlflow_stability.kinds.catalog import documentation
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.kinds.loss.nonfinite import InfDetected, NanDetected
from mlflow_stability.kinds.optimizer.loss_scaling import LossScaleCollapse
from mlflow_stability.kinds.reported.setup import MissingZeroGrad
from mlflow_stability.vocabulary.result import (
    SMALLER_UPDATE_TOPICS,
    Action,
    Cause,
    Diagnosis,
    Finding,
    Remedy,
    Severity,
    Topic,
    read_remedies,
)
from mlflow_stability.vocabulary.run import RunHistory

AT = 250
NO_CURVES = RunCurves((), (), (), ())
FLOAT32 = {"stability.parameter_types": "float32"}
NAN = at_step(
    AT,
    "nan_detected",
    Severity.CRITICAL,
    f"loss is NaN at step {AT}.",
    evidence={"loss": math.nan},
    remedies=NanDetected.remedies,
)


def sentences(diagnosis: Diagnosis | Finding) -> list[str]:
    return [str(remedy) for remedy in diagnosis.remedies]


def broken(*events: Finding, params: dict[str, str] | None = None, scale: float | None = None) -> RunHistory:
    losses = falling(400)
    losses[AT:] = math.nan
    metrics = [metric_of("loss", losses)]
    if scale is not None:
        metrics.append(metric_of("loss_scale", np.full(400, scale)))
    return run_of(*metrics, events=events, params=params)


def born(source: str, *remedies: str, **numbers: float) -> Finding:
    message = f"Step {AT}: the first non-finite value comes from somewhere."
    evidence = {f"from.{source}": 1.0, "operation.div": 1.0, **numbers}
    return at_step(AT, "nan_origin", Severity.INFO, message, "head", evidence, remedies=read_remedies(remedies))


@pytest.mark.parametrize(
    ("params", "scale", "half"),
    [
        (FLOAT32, None, False),
        ({"stability.parameter_types": "bfloat16"}, None, False),
        ({**FLOAT32, "stability.autocast": "cuda bfloat16"}, None, False),
        ({**FLOAT32, "stability.autocast": "cuda float16"}, None, True),
        ({"stability.parameter_types": "float32, float16"}, None, True),
        (FLOAT32, 1024.0, True),
        ({**FLOAT32, "precision": "16-mixed"}, None, True),
        ({**FLOAT32, "precision": "bf16-mixed"}, None, False),
        ({"fp16": "True"}, None, True),
        ({"fp16": "False"}, None, False),
        ({}, None, None),
    ],
)
def test_half_precision_is_read_from_the_parameters_and_the_loss_scale(
    params: dict[str, str], scale: float | None, half: bool | None
) -> None:
    history = broken(NAN, params=params, scale=scale)
    assert in_half_precision(history) is half
    result = [sentence for sentence in sentences(diagnosis_of(history)) if "bf16" in sentence]
    assert (
        result
        == {
            True: ["Train in bf16 instead of fp16."],
            False: [],
            None: ["If it trains in fp16: train in bf16 instead."],
        }[half]
    )


def test_no_episode_says_to_leave_fp16_in_a_run_that_never_used_it() -> None:
    skipped = at_step(
        AT,
        "step_skipped",
        Severity.WARNING,
        "Skipped.",
        remedies=read_remedies(["Train in bf16 instead of fp16.", "Look."]),
    )
    diagnosis = diagnosis_of(broken(NAN, skipped, params=FLOAT32))
    assert not any("fp16" in sentence for episode in diagnosis.findings for sentence in sentences(episode))
    assert any("Look." in sentences(episode) for episode in diagnosis.findings)


def test_only_the_remedy_for_a_known_operation_is_given() -> None:
    exact = born("forward", "Keep the divisor away from zero.", **{"output.nan": 3.0})
    outputs = at_step(
        AT,
        "activation_nonfinite",
        Severity.WARNING,
        "head puts out values that are not finite.",
        remedies=(Remedy(Action.LOOK_FOR_MASKED_ROW),),
    )
    diagnosis = diagnosis_of(broken(NAN, outputs, exact, params=FLOAT32))
    assert sentences(diagnosis) == ["Keep the divisor away from zero."]


def test_smaller_numbers_are_advised_against_an_overflow_too() -> None:
    exact = born("forward", "Scale it down.", overflow=1.0, **{"output.inf": 3.0, "input.greatest": 1e30})
    remedies = diagnosis_of(broken(NAN, exact, params=FLOAT32)).remedies
    assert str(remedies[0]) == "Scale it down."
    assert any(remedy.topic is Topic.LOWER_RATE for remedy in remedies)


def test_a_later_nan_without_a_known_origin_keeps_the_advice_to_find_it() -> None:
    losses = falling(600)
    losses[AT], losses[500:] = math.nan, math.nan
    later = changed(NAN, step=500, message="loss is NaN at step 500.")
    exact = born("forward", "Keep the divisor away from zero.", **{"output.nan": 3.0})
    history = run_of(metric_of("loss", losses), events=[NAN, exact, later], params=FLOAT32)
    first, second = [finding for finding in diagnosis_of(history).findings if finding.kind == "nan_detected"]
    assert NanDetected.remedies[0] not in first.remedies
    assert NanDetected.remedies[0] in second.remedies


@pytest.mark.parametrize("kind", ["nan_detected", "step_skipped"])
def test_a_lower_learning_rate_is_not_advised_against_a_batch_without_targets(kind: str) -> None:
    remedies = documentation(kind).remedies
    assert any(remedy.topic is Topic.LOWER_RATE for remedy in remedies)
    seen = at_step(AT, kind, Severity.WARNING, "It broke.", remedies=remedies)
    exact = born("loss", "Skip batches without targets: the mean over none is 0/0.")
    for params in (FLOAT32, {**FLOAT32, "stability.autocast": "cuda float16"}, {}):
        diagnosis = diagnosis_of(broken(NAN, seen, exact, params=params))
        assert diagnosis.cause is not None
        assert diagnosis.cause.name == "loss_function"
        for finding in diagnosis.findings:
            assert not any(
                re.search("learning rate|lip gradients|fp16", sentence) for sentence in sentences(finding)
            ), finding


def diverged(*events: Finding, params: dict[str, str] | None = None, tags: dict[str, str] | None = None) -> Diagnosis:
    losses = falling(400)
    losses[AT:] *= 1 + np.minimum(4, (np.arange(AT, 400) - AT) / 10)
    attempts = np.zeros(400)
    for event in events:
        attempts[event.step + 1 :] += event.kind == "rollback"
    rose = at_step(AT, "divergence", Severity.CRITICAL, "loss rose.", remedies=Divergence.remedies)
    history = run_of(metric_of("loss", losses, attempts=attempts), events=[rose, *events], params=params)
    return diagnosis_of(replace(history, tags=tags or {}))


def of_going_back(diagnosis: Diagnosis) -> list[str]:
    every = [sentence for episode in diagnosis.findings for sentence in sentences(episode)] + sentences(diagnosis)
    return [sentence for sentence in every if "checkpoint" in sentence]


def test_going_back_is_not_advised_where_a_rollback_followed() -> None:
    assert of_going_back(diverged())
    assert not of_going_back(diverged(at_step(AT + 30, "rollback", Severity.INFO, "Set back.")))


def test_advice_to_restart_names_the_step_and_is_conditional_without_a_known_checkpoint() -> None:
    start = next(finding.start for finding in diverged().findings if finding.kind == "divergence")
    assert f"Restart from a checkpoint before step {start}, if there is one." in of_going_back(diverged())
    kept = diverged(tags={"stability.checkpoints": ".mlflow-stability/checkpoints/1"})
    assert f"Restart from a checkpoint before step {start}." in of_going_back(kept)


def test_going_back_to_a_state_before_the_training_is_not_advised() -> None:
    rose = at_step(3, "divergence", Severity.CRITICAL, "loss rose.", remedies=Divergence.remedies)
    losses = np.concatenate([[2.3, 2.3, 2.3], np.full(397, 50.0)])
    assert not of_going_back(diagnosis_of(run_of(metric_of("loss", losses), events=[rose])))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, "Clip gradients."),
        ({"stability.clipping.max_norm": "1.0"}, "Clip gradients at less than 1."),
    ],
)
def test_no_clipping_norm_is_advised_where_no_gradient_norm_is_known(params: dict[str, str], expected: str) -> None:
    assert expected in sentences(diverged(params=params))


def test_remedies_of_a_cause_that_do_not_fit_the_run_are_left_out() -> None:
    why = Cause("fp16_scale", "")
    skipped = over_steps("step_skipped", Severity.WARNING, 9, 9, 9, "", cause=why)
    (finding,) = with_fitting_remedies([skipped], run_of(params=FLOAT32), NO_CURVES)
    assert finding.cause is not None
    assert not any("fp16" in str(remedy) for remedy in remedies_of([finding], finding.cause, "unstable"))


def test_advice_on_fp16_is_conditional_where_the_precision_is_unknown() -> None:
    collapsed = over_steps("loss_scale_collapse", Severity.CRITICAL, 9, 9, 9, "", remedies=LossScaleCollapse.remedies)
    (finding,) = with_fitting_remedies([collapsed], run_of(), NO_CURVES)
    assert sentences(finding)[:2] == [
        "If it trains in fp16: train in bf16 instead.",
        "If it trains in fp16: start with a loss scale of 1024 that grows by 1.5 every 200 steps.",
    ]


@pytest.mark.parametrize("kind", ["divergence", "loss_spike", "gradient_explosion", "divergence:start"])
def test_smaller_steps_are_not_advised_against_a_missing_zero_grad(kind: str) -> None:
    losses = falling(400)
    losses[AT : AT + 3 if kind == "loss_spike" else None] = 30
    seen = at_step(AT - 20, "missing_zero_grad", Severity.WARNING, "Gradients are not cleared since step 230.")
    remedies = documentation(kind).remedies
    broke = at_step(AT, kind.partition(":")[0], Severity.CRITICAL, "It stands out.", remedies=remedies)
    norms = metric_of("grad_norm", falling(400))
    with_cause = diagnosis_of(run_of(metric_of("loss", losses), norms, events=[seen, broke]))
    (episode,) = [finding for finding in with_cause.findings if finding.start == AT and finding.kind == broke.kind]
    call = MissingZeroGrad.remedies[0]
    back = Remedy(Action.RESTART_BEFORE_STEP, step=AT, conditional=True)
    assert episode.remedies in ((call,), (call, back))
    without = diagnosis_of(run_of(metric_of("loss", losses), norms, events=[broke]))
    assert any(remedy.topic in SMALLER_UPDATE_TOPICS for remedy in without.remedies)
    useless = SMALLER_UPDATE_TOPICS | {Topic.INSPECT_BATCH}
    assert not any(remedy.topic in useless for remedy in with_cause.remedies)


def leaping(*events: Finding) -> RunHistory:
    """A training whose loss jumps with the batch of one step, and is infinite two steps later."""
    losses, gradients = falling(400), np.exp(np.random.default_rng(7).normal(0, 0.1, 400))
    losses[AT:], gradients[AT:] = math.nan, math.nan
    losses[AT : AT + 3], gradients[AT : AT + 2] = (1e8, 1e11, math.inf), (1e4, 1e6)
    findings = [
        at_step(AT, "loss_spike", Severity.CRITICAL, "loss 1e+08.", remedies=LossSpike.remedies),
        at_step(AT + 2, "inf_detected", Severity.CRITICAL, "loss is infinite.", remedies=InfDetected.remedies),
        at_step(AT + 3, "nan_detected", Severity.CRITICAL, "loss is NaN.", remedies=NanDetected.remedies),
    ]
    curves = {"loss": losses, "grad_norm": gradients, "learning_rate": np.full(400, 3e-4)}
    return run_of(*(metric_of(name, values) for name, values in curves.items()), events=[*findings, *events])


def test_the_batch_to_inspect_is_that_of_the_cause_and_no_operation_is_to_be_looked_for() -> None:
    diagnosis = diagnosis_of(leaping())
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.since, diagnosis.cause.step) == ("bad_batch", AT, AT + 2)
    assert str(diagnosis.remedies[0]) == f"Inspect the batch at step {AT}."
    assert f"Restart from a checkpoint before step {AT}, if there is one." in sentences(diagnosis)
    assert not any(remedy.action.looks_for_origin or remedy.step == AT + 2 for remedy in diagnosis.remedies)


@pytest.mark.parametrize("also", ["", ", and in the run under stability/batches/"])
def test_the_file_of_the_saved_batch_and_the_result_of_running_it_again_are_reported(also: str) -> None:
    again = "The model's output was finite both times: check the labels, the loss function and the backward pass."
    message = (
        f"Batch of step {AT}: args[0] float32 64x10 from -2 to 2. {again} Its tensors are saved in /a b/x.pt{also}."
    )
    elsewhere = at_step(AT + 2, "broken_batch", Severity.INFO, message.replace("x.pt", "y.pt"))
    diagnosis = diagnosis_of(leaping(at_step(AT, "broken_batch", Severity.INFO, message), elsewhere))
    assert diagnosis.cause is not None
    assert diagnosis.cause.evidence[0] == again
    assert str(diagnosis.remedies[0]) == f"Inspect the batch at step {AT} (saved as /a b/x.pt)."


def test_the_saved_batch_of_a_traced_nan_is_named_by_its_file() -> None:
    saved = f"Batch of step {AT}: args[0] float32 64x10 (3 NaN). Its tensors are saved in /tmp/batch-000250.pt."
    traced = born("input", "Inspect the saved batch and the code that makes it.")
    diagnosis = diagnosis_of(broken(NAN, traced, at_step(AT, "broken_batch", Severity.INFO, saved)))
    (remedy, *_) = diagnosis.remedies
    assert remedy.path == "/tmp/batch-000250.pt"
    assert str(remedy) == "Inspect the saved batch and the code that makes it (saved as /tmp/batch-000250.pt)."


def test_the_batch_of_a_skipped_step_is_to_be_inspected_once() -> None:
    twice = (Remedy(Action.INSPECT_BATCH, step=301), Remedy(Action.INSPECT_FIRST_SKIPPED))
    assert one_of_each_topic(twice) == twice[:1]
    assert one_of_each_topic(twice[1:]) == twice[1:]


@pytest.mark.parametrize(
    ("params", "schedule"),
    [
        (
            {"stability.scheduler": "CosineAnnealingLR", "stability.scheduler.T_max": "150"},
            " (CosineAnnealingLR, T_max=150)",
        ),
        ({"stability.scheduler": "LambdaLR"}, " (LambdaLR)"),
        ({"stability.scheduler": "StepLR", "stability.optimizer_1.scheduler": "LambdaLR"}, ""),
        ({}, ""),
    ],
)
def test_advice_about_a_schedule_names_it(params: dict[str, str], schedule: str) -> None:
    rates = np.where(np.arange(400) < 150, 0.003 * (1 - np.arange(400) / 150), 0.0)
    diagnosis = diagnosis_of(run_of(metric_of("loss", falling(400)), metric_of("learning_rate", rates), params=params))
    (finding,) = diagnosis.findings
    assert finding.kind == "learning_rate_zero"
    assert str(finding.remedies[0]) == (
        f"Set the length of the learning-rate schedule{schedule} to the number of optimizer steps, or step the "
        "schedule once an epoch if it counts epochs."
    )
