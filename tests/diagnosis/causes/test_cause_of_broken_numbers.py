from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.reported.broken_steps import (
    BrokenBatchFacts,
    NanOriginFacts,
    NanSource,
    Rerun,
    TensorFacts,
)
from mlflow_stability.vocabulary.result import Action, Cause, Finding, Remedy, Severity, read_remedies
from mlflow_stability.vocabulary.run import Metric, RunHistory

COUNT, AT = 400, 250


def named(history: RunHistory) -> Cause:
    diagnosis = diagnosis_of(history)
    assert diagnosis.cause is not None, diagnosis.cannot_tell
    return diagnosis.cause


def nan_from(at: int = AT) -> Finding:
    return at_step(at, "nan_detected", Severity.CRITICAL, f"loss is NaN at step {at}.", evidence={"loss": math.nan})


def origin(source: str, *, place: str = "blocks.1.norm", **numbers: float) -> Finding:
    evidence = {f"from.{source}": 1.0, **{key.replace("_", "."): value for key, value in numbers.items()}}
    message = f"Step {AT}: the first non-finite value comes from log in {place} (model.py:41)."
    return at_step(AT, "nan_origin", Severity.INFO, message, place, evidence)


def looked_at(**numbers: float) -> Finding:
    evidence = {key.replace("__", ".", 1): value for key, value in numbers.items()}
    return at_step(AT, "broken_batch", Severity.INFO, f"The batch of step {AT}: ...", evidence=evidence)


def broken(*events: Finding, more: tuple[Metric, ...] = (), gradients: np.ndarray | None = None) -> RunHistory:
    losses = falling(COUNT)
    losses[AT:] = math.nan
    if gradients is None:
        gradients = np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
        gradients[AT:] = math.nan
    metrics = [metric_of("loss", losses), metric_of("grad_norm", gradients)]
    metrics.append(metric_of("learning_rate", np.full(COUNT, 3e-4)))
    return run_of(*metrics, *more, events=[nan_from(), *events])


@pytest.mark.parametrize(
    ("source", "name", "certainty"),
    [
        ("input", "bad_batch", "certain"),
        ("optimizer", "optimizer_state", "certain"),
        ("weight", "damaged_weights", "likely"),
        ("buffer", "damaged_weights", "likely"),
        ("loss", "loss_function", "likely"),
        ("backward", "gradient_non_finite", "likely"),
        ("elsewhere", "tensor_from_outside", "likely"),
        ("forward", "invalid_operation", "likely"),
    ],
)
def test_the_source_of_the_first_non_finite_value_is_the_cause(source: str, name: str, certainty: str) -> None:
    cause = named(broken(origin(source, output_nan=3.0)))
    assert (cause.name, cause.certainty) == (name, certainty)
    assert cause.statement.startswith("The first non-finite value comes from log in blocks.1.norm (model.py:41)")
    assert cause.place == ("" if source in ("loss", "input") else "blocks.1.norm")


@pytest.mark.parametrize(("dtype", "is_half"), [("float16", True), ("float32", False)])
def test_weights_in_float16_that_an_optimizer_broke_are_to_be_kept_in_float32(dtype: str, is_half: bool) -> None:
    weight = TensorFacts("2.bias", (64,), dtype, -0.1, 0.1, 0.0, 5, 29)
    facts = NanOriginFacts(NanSource.OPTIMIZER, "2", ("Adam",), name="update", output=weight)
    diagnosis = diagnosis_of(broken(Finding.at(facts, AT, Severity.INFO)))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "optimizer_state"
    assert any("an eps below 3e-8 are zero" in sentence for sentence in diagnosis.cause.evidence) is is_half
    assert (diagnosis.remedies[0].action is Action.KEEP_WEIGHTS_IN_FLOAT32) is is_half


@pytest.mark.parametrize(("norm", "slope"), [(math.inf, True), (1e30, False)])
def test_one_step_with_a_finite_loss_and_infinite_gradients_has_an_infinite_slope(norm: float, slope: bool) -> None:
    norms = np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    norms[AT] = norm
    skipped = at_step(AT, "step_skipped", Severity.WARNING, f"Step {AT} was skipped.")
    diagnosis = diagnosis_of(run_of(metric_of("loss", falling(COUNT)), metric_of("grad_norm", norms), events=[skipped]))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "bad_batch"
    assert ("its loss was finite, and its gradients were not" in diagnosis.cause.statement) is slope
    assert (diagnosis.remedies[0].action is Action.CHECK_INFINITE_SLOPES) is slope


def one_skipped(*events: Finding) -> RunHistory:
    losses = falling(COUNT)
    losses[AT] = math.nan
    skipped = at_step(AT, "step_skipped", Severity.WARNING, f"Step {AT} was skipped by us.")
    norms = np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    return run_of(metric_of("loss", losses), metric_of("grad_norm", norms), events=[nan_from(), skipped, *events])


@pytest.mark.parametrize(
    ("source", "name", "place"),
    [
        ("forward", "invalid_operation", "blocks.1.norm"),
        ("loss", "loss_function", ""),
        ("backward", "gradient_non_finite", "blocks.1.norm"),
    ],
)
def test_the_operation_in_which_one_batch_became_non_finite_is_named(source: str, name: str, place: str) -> None:
    diagnosis = diagnosis_of(one_skipped(origin(source, output_nan=3.0)))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.place) == (name, place)
    assert any("with the same weights the next batches gave" in text for text in diagnosis.cause.evidence)
    assert not any(remedy.action is Action.FIND_FIRST_NAN_MODULE for remedy in diagnosis.remedies)


def test_the_evidence_for_one_overflowing_batch_names_the_operation() -> None:
    cause = named(one_skipped(origin("forward", output_nan=0.0, output_inf=7.0)))
    assert (cause.name, cause.place) == ("bad_batch", "blocks.1.norm")
    assert any("comes from log in blocks.1.norm (model.py:41)" in text for text in cause.evidence)


def test_an_operation_that_gave_only_infinities_overflowed() -> None:
    cause = named(broken(origin("forward", output_nan=0.0, output_inf=7.0, input_least=-3e5, input_greatest=8e5)))
    assert cause.name == "overflow"
    assert cause.evidence == ("inputs range from -3e+05 to 8e+05",)


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ({"input_least": 0.0, "input_greatest": 1.0}, "invalid_operation"),
        ({"input_least": 0.0, "input_greatest": 500.0, "overflow": 0.0}, "invalid_operation"),
        ({"input_least": 0.0, "input_greatest": 500.0, "overflow": 1.0}, "overflow"),
    ],
)
def test_the_logarithm_of_zero_is_not_an_overflow(numbers: dict[str, float], name: str) -> None:
    cause = named(broken(origin("forward", output_nan=0.0, output_inf=7.0, **numbers)))
    assert cause.name == name


@pytest.mark.parametrize(
    ("event", "name", "denied"),
    [
        (origin("input"), "bad_batch", "bad batch"),
        (origin("forward", output_inf=7.0, output_nan=0.0, input_greatest=8e5), "overflow", "overflow"),
        (origin("forward", output_nan=7.0, input_greatest=8.0), "invalid_operation", "bad batch"),
    ],
)
def test_ruled_out_causes_do_not_contradict_the_named_cause(event: Finding, name: str, denied: str) -> None:
    cause = named(broken(event))
    assert cause.name == name
    assert len(cause.ruled_out) > 2
    assert not any(text.startswith(denied) for text in cause.ruled_out), cause.ruled_out


def test_no_overflow_is_ruled_out_by_the_operation_rather_than_by_the_curves() -> None:
    cause = named(broken(origin("forward", output_inf=544.0, output_nan=0.0, input_least=0.0, input_greatest=1.0)))
    (text,) = [text for text in cause.ruled_out if text.startswith("overflow")]
    assert "range from 0 to 1" in text
    assert "infinite" not in text


def test_the_origin_of_a_nan_is_evidence_for_the_finding_that_came_first() -> None:
    losses, gradients = falling(COUNT), np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    losses[AT - 1], gradients[AT - 1] = 9.0, 60.0
    spike = at_step(AT - 1, "loss_spike", Severity.WARNING, "loss is 9.")
    torn = replace(
        origin("forward", output_inf=9.0, overflow=1.0), remedies=read_remedies(("Train in bf16 instead of fp16.",))
    )
    metrics = [metric_of("loss", losses), metric_of("grad_norm", gradients)]
    diagnosis = diagnosis_of(run_of(*metrics, events=[spike, torn], params={"stability.autocast": "cuda float16"}))
    assert diagnosis.cause is not None
    assert diagnosis.cause.kind == "loss_spike"
    assert any(f"At step {AT} the first non-finite value comes from log" in e for e in diagnosis.cause.evidence)
    assert Remedy(Action.TRAIN_IN_BF16) in diagnosis.remedies


def test_the_origin_of_a_much_later_nan_is_not_evidence() -> None:
    losses = falling(COUNT)
    losses[100] = 9.0
    spike = at_step(100, "loss_spike", Severity.WARNING, "loss is 9.")
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), events=[spike, origin("forward", output_inf=9.0)]))
    assert diagnosis.cause is None or not any("not finite" in text for text in diagnosis.cause.evidence)


def test_huge_values_inside_a_healthy_model_after_a_normal_batch_mean_damaged_weights() -> None:
    inside = origin("forward", output_nan=1.0, input_least=-1e37, input_greatest=1.0)
    given = looked_at(**{"least__args[0]": 0.0, "greatest__args[0]": 7.0})
    assert named(broken(inside, given)).name == "damaged_weights"
    assert named(replace(broken(inside), params={"stability.batch": "int64[16, 32]"})).name == "damaged_weights"
    assert named(replace(broken(inside), params={"stability.batch": "float32[16, 32]"})).name == "overflow"
    assert named(broken(inside)).name == "overflow"


def test_an_optimizer_that_wrote_nan_after_the_gradients_had_exploded_is_not_certainly_the_cause() -> None:
    gradients = np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    gradients[AT - 3 : AT], gradients[AT:] = 1e12, math.nan
    cause = named(broken(origin("optimizer"), gradients=gradients))
    assert (cause.name, cause.certainty) == ("gradient_explosion", "likely")


def test_a_batch_that_is_finite_the_second_time_points_at_the_hardware() -> None:
    assert named(broken(looked_at(finite_again=1.0))).name == "hardware"
    assert diagnosis_of(broken(looked_at(finite_again=0.0))).cause is None


def test_a_gradient_that_broke_while_the_loss_was_whole_is_named_from_the_curves_alone() -> None:
    losses, gradients = falling(COUNT), np.ones(COUNT)
    gradients[AT:] = math.nan
    losses[AT + 1 :] = math.nan
    event = at_step(AT, "nan_detected", Severity.CRITICAL, "grad_norm is NaN.", evidence={"grad_norm": math.nan})
    cause = named(run_of(metric_of("loss", losses), metric_of("grad_norm", gradients), events=[event]))
    assert cause.name == "gradient_non_finite"


def test_a_non_finite_value_after_the_model_with_a_finite_loss_came_from_the_backward_pass() -> None:
    losses, gradients = falling(COUNT), np.ones(COUNT)
    gradients[AT:], losses[AT + 1 :] = math.nan, math.nan
    metrics = [metric_of("loss", losses), metric_of("grad_norm", gradients)]
    cause = named(run_of(*metrics, events=[nan_from(), origin("loss")]))
    assert cause.name == "gradient_non_finite"
    assert cause.statement.startswith("The first non-finite value comes from log")


def test_a_loss_scale_that_is_raised_too_fast_is_named_as_the_cause() -> None:
    losses, gradients = falling(COUNT), np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    scale = np.full(COUNT, 65536.0) * 4.0 ** np.minimum(5, np.maximum(0, (np.arange(COUNT) - AT + 42) // 8))
    gradients[AT : AT + 20] = math.nan
    event = at_step(AT, "step_skipped", Severity.WARNING, "Skipped by the loss scaler.")
    metrics = [metric_of("loss", losses), metric_of("grad_norm", gradients), metric_of("loss_scale", scale)]
    cause = named(run_of(*metrics, events=[event]))
    assert cause.name == "fp16_scale"
    assert "gradients were of usual size" in cause.statement


@pytest.mark.parametrize("after", [math.nan, 1.0])
def test_weights_are_not_called_damaged_where_restored_weights_give_a_nan_too(after: float) -> None:
    losses = falling(COUNT)
    losses[AT:] = math.nan
    losses[AT + 25 :] = after * falling(COUNT)[AT + 25 :]
    events = [nan_from()]
    events += [at_step(step, "step_skipped", Severity.WARNING, f"Skipped step {step}.") for step in range(AT, AT + 25)]
    events.append(at_step(AT + 24, "rollback", Severity.INFO, "Rolled back.", evidence={"target": AT - 60.0}))
    attempts = (np.arange(COUNT) >= AT + 25).astype(int)
    norms = np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    metrics = [metric_of("loss", losses, attempts=attempts), metric_of("grad_norm", norms, attempts=attempts)]
    cause = diagnosis_of(run_of(*metrics, events=events)).cause
    assert (cause is not None and cause.name == "damaged_weights") == (not math.isnan(after))


def inputs(nan: int = 0, inf: int = 0, *, changed: bool = False, rerun: Rerun = Rerun.CANNOT_TELL) -> Finding:
    tensor = TensorFacts("args[0]", (32, 20), "float32", -3.0, 3.0, 0.0, nan=nan, inf=inf)
    words = "The batch was not run again: Net.forward is a closure."
    return at_step(
        AT,
        "broken_batch",
        Severity.INFO,
        facts=BrokenBatchFacts((tensor,), rerun=rerun, rerun_words=words, changed_in_place=changed),
    )


def test_nan_in_the_inputs_is_a_certain_cause_where_the_batch_was_not_run_again() -> None:
    cause = named(broken(inputs(nan=1)))
    assert (cause.name, cause.certainty) == ("bad_batch", "certain")
    assert "args[0] float32 32x20 from -3 to 3 (1 NaN)" in cause.statement
    assert not any(text.startswith("bad batch") for text in cause.ruled_out)
    assert any("Net.forward is a closure" in text for text in cause.not_checked)


@pytest.mark.parametrize(
    "batch",
    [
        inputs(),
        inputs(inf=4),  # as in an attention mask
        inputs(nan=1, changed=True),  # by the model, maybe
        inputs(nan=1, rerun=Rerun.AFTER_THE_MODEL),
    ],
)
def test_inputs_are_not_named_where_they_may_be_no_cause(batch: Finding) -> None:
    cause = diagnosis_of(broken(batch)).cause
    assert cause is None or cause.name != "bad_batch"
