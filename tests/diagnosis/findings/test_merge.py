"""Non-finite values that come again and again are one finding, which names the origin of the first of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step, over_steps

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.findings.merge import merged
from mlflow_stability.kinds.loss.divergence import DivergenceFacts
from mlflow_stability.kinds.loss.loss_spike_curve import CurveSpikeFacts
from mlflow_stability.kinds.progress.oscillation import PeriodicLossFacts
from mlflow_stability.vocabulary.result import Finding, Severity, read_remedies
from mlflow_stability.vocabulary.run import RunHistory

BORN = "the first non-finite value comes from sqrt in distance (train.py:11), which produced 32 NaN."


def skipped(step: int) -> Finding:
    return at_step(step, "step_skipped", Severity.WARNING, f"Step {step} was skipped by us.", judged=False)


def broken(step: int, kind: str = "inf_detected", place: str = "") -> Finding:
    return at_step(step, kind, Severity.CRITICAL, f"loss is infinite at step {step}.", place, {"loss": math.inf})


def origin(step: int) -> Finding:
    remedies = read_remedies(["Keep what goes into sqrt above zero."])
    return at_step(
        step, "nan_origin", Severity.INFO, f"Step {step}: {BORN}", "distance", remedies=remedies, judged=False
    )


def history(*events: Finding, bad: tuple[int, ...] = ()) -> RunHistory:
    losses = falling(1000)
    losses[list(bad)] = np.inf
    return run_of(metric_of("loss", losses), events=events, outcome="finished")


STEPS = (100, 180, 260, 400, 520, 700, 760)


def test_six_skipped_steps_and_seven_infinities_of_one_trouble_are_one_finding() -> None:
    events = [*map(broken, STEPS), *map(skipped, STEPS[:6])]
    diagnosis = diagnosis_of(history(*events, bad=STEPS))
    (episode,) = [finding for finding in diagnosis.findings if finding.severity > Severity.INFO]
    assert (episode.kind, episode.start, episode.end, episode.count) == ("inf_detected", 100, 760, 7)
    assert "Found 7 times, last at step 760" in episode.message
    assert "Found 6 times, last at step 700" in episode.message
    assert episode.recovered


def test_trouble_that_comes_again_long_afterwards_is_another_finding() -> None:
    diagnosis = diagnosis_of(history(broken(100), broken(800), bad=(100, 800)))
    assert [finding.start for finding in diagnosis.findings] == [100, 800]


def test_steps_that_are_skipped_without_a_bad_number_are_one_finding_of_their_own() -> None:
    diagnosis = diagnosis_of(history(*map(skipped, STEPS)))
    (episode,) = diagnosis.findings
    assert (episode.kind, episode.count, episode.end) == ("step_skipped", 7, 760)


def test_the_finding_and_the_verdict_name_the_operation_with_the_first_non_finite_value() -> None:
    diagnosis = diagnosis_of(history(broken(100), skipped(100), origin(100), bad=(100,)))
    result = BORN[:1].upper() + BORN[1:]
    assert diagnosis.outcome == "unstable"
    assert result in diagnosis.verdict
    (episode,) = [finding for finding in diagnosis.findings if finding.severity > Severity.INFO]
    assert episode.message.endswith(result)
    assert str(episode.remedies[0]) == "Keep what goes into sqrt above zero."


def test_the_verdict_on_a_permanently_broken_training_names_the_operation() -> None:
    losses = falling(1000)
    losses[600:] = np.nan
    events = (broken(600, "nan_detected"), origin(600))
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), events=events, outcome="finished"))
    assert diagnosis.outcome == "broken"
    assert "comes from sqrt in distance (train.py:11)" in diagnosis.verdict


def test_the_origin_of_a_nan_without_another_finding_is_a_finding_itself() -> None:
    (episode,) = diagnosis_of(history(origin(300))).findings
    assert (episode.kind, episode.severity) == ("nan_origin", Severity.WARNING)


def test_an_infinity_that_turned_into_nan_has_the_last_finite_value_once() -> None:
    losses = falling(400)
    losses[250:], losses[250] = math.nan, math.inf
    before = "last finite value 1.128e+11"
    events = (
        at_step(
            250, "inf_detected", Severity.CRITICAL, f"loss is infinite at step 250; {before}.", "", {"loss": math.inf}
        ),
        at_step(251, "nan_detected", Severity.CRITICAL, f"loss is NaN at step 251; {before}.", "", {"loss": math.nan}),
    )
    (finding,) = diagnosis_of(run_of(metric_of("loss", losses), events=events)).findings
    assert finding.message == f"loss is infinite at step 250; {before}. loss is NaN at step 251."


def test_spikes_within_the_swing_of_a_periodic_loss_belong_to_it() -> None:
    losses = np.where(np.arange(2000) % 40 < 20, 1.7, 3.3)
    losses[1500] = 9.0
    bad = [
        finding
        for finding in diagnosis_of(run_of(metric_of("loss", losses.tolist()))).findings
        if finding.severity > Severity.INFO
    ]
    assert [(first.kind, first.start) for first in bad] == [("periodic_loss", 0), ("loss_spike", 1500)]


@pytest.mark.parametrize(("heights", "peak"), [((5.0, 9.0), 112), ((9.0, 5.0), 101)])
def test_findings_that_touch_are_one_whose_peak_is_the_higher_one(heights: tuple[float, float], peak: int) -> None:
    spans = ((100, 101, 110), (108, 112, 120))
    spikes = [
        over_steps(
            "loss_spike",
            Severity.WARNING,
            *span,
            recovered=True,
            facts=CurveSpikeFacts("loss", height, 1.0, 12.0, 6.0, 3, span[1], True),
        )
        for span, height in zip(spans, heights, strict=True)
    ]
    (result,) = merged(spikes, 1000)
    assert (result.start, result.peak, result.end, result.recovered) == (100, peak, 120, True)


@pytest.mark.parametrize(("kind", "count"), [("plateau", 1), ("overfitting", 1), ("loss_spike", 2)])
def test_a_run_has_one_plateau_and_one_overfitting_and_spikes_far_apart(kind: str, count: int) -> None:
    spans = ((100, 100, 200), (1500, 1500, 1600))
    findings = [over_steps(kind, Severity.WARNING, *span, recovered=True, metric="loss") for span in spans]
    assert len(merged(findings, 2000)) == count


@pytest.mark.parametrize(("highest", "is_part"), [(3.9, True), (4.2, False)])
def test_a_rise_is_part_of_a_swing_that_is_nearly_as_high(highest: float, is_part: bool) -> None:
    swing = PeriodicLossFacts("loss", 1.7, 3.3, 40.0, 0.9, 0.5, 2000)
    periodic = over_steps("periodic_loss", Severity.WARNING, 0, 20, 2000, metric="loss", facts=swing)
    facts = DivergenceFacts(highest, 1.7, 30.0, 4.0, 12, 16)
    rise = over_steps("divergence", Severity.WARNING, 500, 505, 520, recovered=True, metric="loss", facts=facts)
    assert (rise not in merged([periodic, rise], 2000)) is is_part


@pytest.mark.parametrize(
    ("metric", "place", "is_part"), [("loss", "", True), ("train_loss", "", True), ("aux_loss", "aux", False)]
)
def test_a_rise_of_another_loss_is_no_part_of_a_swing(metric: str, place: str, is_part: bool) -> None:
    swing = PeriodicLossFacts("loss", 1.7, 3.3, 40.0, 0.9, 0.5, 2000)
    periodic = over_steps("periodic_loss", Severity.WARNING, 0, 20, 2000, metric="loss", facts=swing)
    facts = DivergenceFacts(3.0, 1.7, 30.0, 4.0, 12, 16)
    rise = over_steps("divergence", Severity.WARNING, 500, 505, 520, metric=metric, place=place, facts=facts)
    assert (rise not in merged([periodic, rise], 2000)) is is_part
