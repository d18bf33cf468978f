from __future__ import annotations

import math

import numpy as np
from diagnosis.histories import falling, metric_of, run_named, run_of
from findings import at_step, changed, over_steps

from mlflow_stability.analysis.diagnose import filter_kinds
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.verdict import deciding_of
from mlflow_stability.kinds.reported.autopilot import SkipNews, SkippedStepFacts
from mlflow_stability.vocabulary.result import Cause, Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory

COUNT = 500


def a_spike_and_a_jump() -> RunHistory:
    """A spike at 200 that came back at once; the learning rate jumps at 395, and from 402 on the loss is lost."""
    losses, norms = falling(COUNT), np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    losses[200], norms[200] = 4 * losses[200], 30.0
    losses[402:] *= 1 + np.minimum(4, (np.arange(402, COUNT) - 401) / 10)
    rates = np.full(COUNT, 1e-3)
    rates[395:] = 3e-2
    return run_named(loss=losses, learning_rate=rates, grad_norm=norms)


def test_the_cause_is_that_of_the_divergence_and_not_of_a_spike_that_recovered_before() -> None:
    diagnosis = diagnosis_of(a_spike_and_a_jump())
    assert diagnosis.outcome == "diverged"
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.kind) == ("learning_rate_jump", "divergence")
    assert "at step 395" in diagnosis.cause.statement
    assert "schedule" in str(diagnosis.remedies[0])


def test_a_finding_that_does_not_decide_has_its_own_cause_beside_it() -> None:
    diagnosis = diagnosis_of(a_spike_and_a_jump())
    (spike,) = [
        finding
        for finding in diagnosis.findings
        if finding.kind == "loss_spike" and finding.severity >= Severity.WARNING
    ]
    assert spike.cause is not None
    assert (spike.start, spike.cause.name, spike.cause.step) == (200, "bad_batch", 200)


def test_the_cause_shown_is_that_of_the_kind_that_was_asked_for() -> None:
    whole = diagnosis_of(a_spike_and_a_jump())
    divergence, spike = filter_kinds(whole, ("divergence",)), filter_kinds(whole, ("loss_spike",))
    assert divergence.cause == whole.cause
    assert spike.cause is not None
    assert spike.cause.name == "bad_batch"
    assert "batch" in str(spike.remedies[0])


def test_a_verdict_says_that_a_broken_step_was_skipped() -> None:
    losses = falling(COUNT)
    losses[200] = -math.inf
    broken = at_step(200, "inf_detected", Severity.CRITICAL, "loss is -infinite.", evidence={"loss": -math.inf})
    skip = Finding.at(
        SkippedStepFacts(SkipNews.FIRST, 1, 1, by_scaler=False), 200, Severity.WARNING, kind="step_skipped"
    )
    norms = np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))
    curves = metric_of("loss", losses), metric_of("grad_norm", norms)
    assert "infinity at step 200, skipped; " in diagnosis_of(run_of(*curves, events=[broken, skip])).verdict
    assert "infinity at step 200; " in diagnosis_of(run_of(*curves, events=[broken])).verdict
    finite = metric_of("loss", falling(COUNT)), metric_of("grad_norm", norms)
    assert "Unstable: skipped steps at step 200; " in diagnosis_of(run_of(*finite, events=[skip])).verdict


def test_a_process_that_was_killed_long_after_a_spike_was_not_killed_by_it() -> None:
    losses = falling(COUNT)
    losses[200] *= 4
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), outcome="killed", outcome_detail="SIGKILL"))
    assert diagnosis.cause is not None
    assert (diagnosis.outcome, diagnosis.cause.name) == ("killed", "external_kill")


def test_a_nan_that_a_divergence_ended_in_has_the_cause_of_the_divergence() -> None:
    rates = np.full(COUNT, 1e-3)
    rates[195:] = 3e-2
    losses = falling(COUNT)
    losses[200:] *= 1 + np.minimum(4, (np.arange(200, COUNT) - 199) / 10)
    losses[400:] = math.nan
    diagnosis = diagnosis_of(run_named(loss=losses, learning_rate=rates))
    assert diagnosis.cause is not None
    assert (diagnosis.outcome, diagnosis.cause.kind, diagnosis.cause.name) == (
        "broken",
        "nan_detected",
        "learning_rate_jump",
    )


def test_of_findings_that_are_equally_bad_the_first_whose_cause_is_known_decides() -> None:
    first = over_steps("loss_spike", Severity.WARNING, 65, 66, 71, "", recovered=True)
    values = changed(first, start=84, cause=Cause("bad_batch", "A bad batch at step 84."))
    worse = changed(first, start=90, severity=Severity.CRITICAL)
    assert deciding_of("unstable", [first, values]) is values
    assert deciding_of("unstable", [first, values, worse]) is worse
    assert deciding_of("healthy", []) is None


def rate_that_jumped(*, events: bool) -> RunHistory:
    """The learning rate jumps at step 228; the loss is lost from 230 on, and at 400 the gradient breaks."""
    dice = np.random.default_rng(3)
    losses, norms = falling(COUNT), np.exp(dice.normal(0, 0.1, COUNT))
    norms[230:] = 10 * np.exp((np.arange(230, COUNT) - 230) / 20)
    losses[230:] *= np.exp(np.minimum(5, (np.arange(230, COUNT) - 229) / 25))
    norms[400:], losses[430:] = math.nan, math.nan
    origin = at_step(
        400, "nan_origin", Severity.INFO, "Step 400: the batch was not finite.", evidence={"from.input": 1.0}
    )
    findings = [
        at_step(235, "divergence", Severity.CRITICAL, "loss rose."),
        at_step(
            400, "nan_detected", Severity.CRITICAL, "grad_norm is NaN at step 400.", evidence={"grad_norm": math.nan}
        ),
        *([origin] if events else []),
    ]
    rates = np.where(np.arange(COUNT) < 228, 1e-3, 0.1)
    curves = metric_of("loss", losses), metric_of("grad_norm", norms), metric_of("learning_rate", rates)
    return run_of(*curves, events=findings)


def test_what_a_nan_came_of_explains_it_before_what_is_seen_of_it_in_its_own_step() -> None:
    diagnosis = diagnosis_of(rate_that_jumped(events=False))
    (nan,) = [finding for finding in diagnosis.findings if finding.kind == "nan_detected"]
    before = next(finding for finding in diagnosis.findings if finding.kind == "divergence")
    assert diagnosis.outcome == "broken"
    assert before.cause is not None
    assert nan.start - before.start > 100
    assert diagnosis.cause is not None
    assert diagnosis.cause == nan.cause
    assert diagnosis.cause.name == before.cause.name == "learning_rate_jump"


def test_what_was_seen_directly_explains_it_whatever_came_before() -> None:
    diagnosis = diagnosis_of(rate_that_jumped(events=True))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.certainty) == ("bad_batch", "certain")
