"""Inputs that fp16 cannot hold, and losses of minus infinity."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.checklist.checklist import checklist_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.first_look.batches import InputScaleFacts
from mlflow_stability.kinds.reported.broken_steps import NanOrigin, NanOriginFacts, NanSource, TensorFacts
from mlflow_stability.vocabulary.result import Action, Cause, Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT, AT = 400, 250
HALF, AUTOCAST = {"stability.parameter_types": "float16"}, {"stability.autocast": "cuda float16"}
SINGLE = {"stability.parameter_types": "float32"}


def named(history: RunHistory) -> Cause:
    diagnosis = diagnosis_of(history)
    assert diagnosis.cause is not None, diagnosis.cannot_tell
    return diagnosis.cause


def nan_from(at: int) -> Finding:
    return at_step(at, "nan_detected", Severity.CRITICAL, f"loss is NaN at step {at}.", evidence={"loss": nan})


def broken_at(at: int, *, inputs: float, measured: int, params: dict[str, str]) -> RunHistory:
    losses = falling(COUNT)
    losses[at:] = nan
    sizes = [
        metric_of(name, [value], meaning=Meaning(name, "0", is_known=True), steps=[measured])
        for name, value in (("input_low", -inputs), ("input_high", 2.0))
    ]
    scale = Finding.at(InputScaleFacts("0", -inputs, 2.0, inputs), measured, Severity.WARNING)
    return run_of(metric_of("loss", losses), *sizes, events=[nan_from(at), scale], params=params)


@pytest.mark.parametrize("params", [HALF, AUTOCAST])
@pytest.mark.parametrize(("inputs", "words"), [(200_000.0, "reach 2e+05"), (inf, "are infinite")])
def test_inputs_above_the_largest_number_of_fp16_overflow(params: dict[str, str], inputs: float, words: str) -> None:
    cause = named(broken_at(0, inputs=inputs, measured=10, params=params))
    assert (cause.name, cause.certainty, cause.since) == ("overflow", "likely", 0)
    assert cause.statement == (
        f"Overflow: the inputs of module 0 {words} at step 10; the largest number of fp16 is 65504."
    )
    assert [remedy.action for remedy in cause.remedies] == [Action.STANDARDISE_INPUTS, Action.TRAIN_IN_BF16]


@pytest.mark.parametrize(
    ("params", "inputs"), [(HALF, 60_000.0), (SINGLE, 200_000.0), ({"stability.autocast": "cuda bfloat16"}, 200_000.0)]
)
def test_inputs_within_the_number_format_do_not_overflow(params: dict[str, str], inputs: float) -> None:
    cause = named(broken_at(0, inputs=inputs, measured=10, params={**SINGLE, **params}))
    assert cause.name == "setup"
    assert any(sentence.startswith("overflow: no infinity") for sentence in cause.ruled_out)


def test_large_inputs_with_a_finite_loss_leave_an_overflow_possible() -> None:
    cause = named(broken_at(AT, inputs=200_000.0, measured=10, params=AUTOCAST))
    assert cause.name != "overflow"
    assert not any(sentence.startswith("overflow") for sentence in cause.ruled_out)
    assert "overflow: possible, the inputs of module 0 reach 2e+05; the largest number of fp16 is 65504" in (
        cause.not_checked
    )


def from_batch(dtype: str, *, nans: int = 0) -> RunHistory:
    losses = falling(COUNT)
    losses[AT:] = nan
    tensor = TensorFacts("args[0]", (16, 8), dtype, -6e4, 6.2e4, 0.0, nan=nans, inf=93)
    origin = NanOriginFacts(NanSource.INPUT, "0", name="args[0]", output=tensor)
    events = [
        nan_from(AT),
        Finding.at(origin, AT, Severity.INFO, remedies=NanOrigin.remedies),
    ]
    return run_of(metric_of("loss", losses), events=events, params=HALF)


def test_infinities_of_an_fp16_batch_may_come_from_its_conversion() -> None:
    history = from_batch("float16")
    cause = named(history)
    assert (cause.name, cause.certainty) == ("bad_batch", "certain")
    assert "Possible overflow: in fp16, numbers above 65504 are infinite" in cause.evidence
    assert Action.STANDARDISE_INPUTS in [remedy.action for remedy in cause.remedies]
    assert not any(sentence.startswith("overflow") for sentence in cause.ruled_out)
    assert "overflow: possible, numbers above 65504 become infinite in fp16" in cause.not_checked
    (answer,) = [
        item.finding
        for item in checklist_of("nan_detected", history, diagnosis_of(history)).items
        if item.question.startswith("Did numbers overflow")
    ]
    assert answer.startswith("Possible: ")


@pytest.mark.parametrize(("dtype", "nans"), [("float32", 0), ("float16", 3)])
def test_other_batches_that_are_not_finite_did_not_overflow(dtype: str, nans: int) -> None:
    cause = named(from_batch(dtype, nans=nans))
    assert cause.name == "bad_batch"
    assert "overflow: the batch itself was non-finite" in cause.ruled_out
    assert not any("overflow" in sentence for sentence in cause.evidence)


def infinite(value: float, *, before: float = 0.5, params: dict[str, str] | None = None) -> RunHistory:
    losses = falling(COUNT)
    losses[AT - 1], losses[AT], losses[AT + 1 :] = before, value, nan
    return run_of(metric_of("loss", losses), params=params)


def test_a_loss_of_minus_infinity_is_probably_the_logarithm_of_zero() -> None:
    cause = named(infinite(-inf))
    assert (cause.name, cause.certainty, cause.since) == ("logarithm_of_zero", "likely", AT)
    assert cause.statement == (
        f"loss is minus infinity at step {AT}, probably from the logarithm of zero: log(0) = -inf."
    )
    assert diagnosis_of(infinite(-inf)).remedies[0].action is Action.KEEP_LOGARITHM_ABOVE_ZERO


def test_a_loss_that_starts_at_minus_infinity_is_probably_the_logarithm_of_zero() -> None:
    losses = np.full(COUNT, nan)
    losses[0] = -inf
    assert named(run_of(metric_of("loss", losses))).name == "logarithm_of_zero"


def test_a_loss_that_fell_far_below_zero_overflowed() -> None:
    assert named(infinite(inf)).name == "overflow"
    assert not any("logarithm" in text for text in [named(infinite(-inf, before=-1e30)).statement])
    assert not any("logarithm" in text for text in [named(infinite(-inf, before=-3e4, params=HALF)).statement])


def test_one_batch_with_a_loss_of_minus_infinity_names_the_logarithm() -> None:
    losses = falling(COUNT)
    losses[AT] = -inf
    norms = np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    events = [
        at_step(AT, "inf_detected", Severity.CRITICAL, "loss is -infinite.", evidence={"loss": -inf}),
        at_step(AT, "step_skipped", Severity.WARNING, f"Skipped step {AT}."),
    ]
    history = run_of(metric_of("loss", losses), metric_of("grad_norm", norms), events=events)
    cause = named(history)
    assert cause.name == "bad_batch"
    assert any("log(0) = -inf" in text for text in cause.evidence)
    assert diagnosis_of(history).remedies[0].action is Action.KEEP_LOGARITHM_ABOVE_ZERO


@pytest.mark.parametrize(("largest", "certainty"), [(9.0, "certain"), (11.0, "likely")])
def test_a_loss_function_that_breaks_on_modest_outputs_is_certainly_the_cause(largest: float, certainty: str) -> None:
    losses = falling(COUNT)
    losses[AT:] = nan
    output = TensorFacts("output", (64, 1), "float32", mean=0.0, least=-0.5, greatest=largest)
    origin = Finding.at(NanOriginFacts(NanSource.LOSS, name="loss", inputs=(output,)), AT, Severity.INFO)
    event = at_step(AT, "nan_detected", Severity.CRITICAL, "loss is NaN.", evidence={"loss": nan})
    cause = named(run_of(metric_of("loss", losses), events=[event, origin]))
    assert (cause.name, cause.certainty) == ("loss_function", certainty)


def test_a_loss_function_that_gave_minus_infinity_is_advised_against_the_logarithm() -> None:
    losses = falling(COUNT)
    losses[AT], losses[AT + 1 :] = -inf, nan
    origin = Finding.at(NanOriginFacts(NanSource.LOSS, name="loss"), AT, Severity.INFO, remedies=NanOrigin.remedies)
    event = at_step(AT, "inf_detected", Severity.CRITICAL, "loss is -infinite.", evidence={"loss": -inf})
    cause = named(run_of(metric_of("loss", losses), events=[event, origin]))
    assert cause.name == "loss_function"
    assert any("log(0) = -inf" in text for text in cause.evidence)
    assert cause.remedies[0].action is Action.KEEP_LOGARITHM_ABOVE_ZERO
