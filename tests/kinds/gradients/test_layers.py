from __future__ import annotations

import numpy as np
import pytest
from detectors.series import Floats, at, decaying, judged, noise

from mlflow_stability.vocabulary.result import Finding, Severity

STEPS = 60
"""Measurements; one a hundred steps."""


def layered(quantity: str, **layers: Floats) -> dict[str, Floats]:
    return {f"{quantity}@{name}": values for name, values in layers.items()}


def every_hundred(names: str, **series: Floats) -> list[Finding]:
    """Judged as live: the loss at every step, layers every hundred."""
    from mlflow_stability.kinds.catalog import detectors_named
    from mlflow_stability.kinds.panel import replay
    from mlflow_stability.vocabulary.measured.signal import Signal, StepReading

    loss = series.pop("loss")
    records = []
    for step in range(1, len(loss)):
        layers = {name: values[step // 100] for name, values in series.items()} if step % 100 == 0 else {}
        signals = (Signal("loss"), *(Signal.parse(name) for name in layers))
        records.append(StepReading(step, signals, (float(loss[step]), *map(float, layers.values()))))
    return replay(records, detectors_named(names.split()))


steady = np.exp(noise(3, 800, 0.2))
loss = 2.0 + noise(4, 800, 0.01)


def test_the_layer_with_the_largest_jump_is_named_one_step_after_its_measurement() -> None:
    layers = layered("grad_norm", low=at(steady, 500, 20.0, 2), middle=at(steady, 500, 400.0, 2), high=steady)
    (event,) = judged("layer_explosion", loss=loss, **layers)
    assert (event.step, event.place, event.severity) == (500, "middle", Severity.WARNING)
    assert "2 of 3 layers jumped together" in event.message


def test_an_explosion_of_layers_is_over_after_three_calm_measurements() -> None:
    twice = at(at(steady, 500, 50.0), 600, 50.0)
    assert [finding.step for finding in judged("layer_explosion", loss=loss, **layered("grad_norm", a=twice))] == [
        500,
        600,
    ]
    again = at(at(steady, 500, 50.0), 502, 50.0)
    assert [finding.step for finding in judged("layer_explosion", loss=loss, **layered("grad_norm", a=again))] == [500]


def test_layers_of_any_size_are_healthy() -> None:
    layers = layered("grad_norm", a=1e-2 * steady, b=0.5 * steady, c=0.1 * steady)
    weights = layered("param_norm", a=0.1 * steady, b=3 * steady, c=50 * steady)
    assert judged(None, loss=loss, **layers, **weights) == []


def test_a_gradient_that_does_not_reach_the_first_layer_is_vanishing_if_the_loss_is_flat() -> None:
    layers = layered("grad_norm", first=1e-4 * steady[:21], second=0.1 * steady[:21], last=steady[:21])
    (event,) = every_hundred("gradient_vanishing:layers", loss=2.3 + noise(5, 2001, 0.01), **layers)
    assert (event.step, event.place, event.severity) == (500, "first", Severity.WARNING)
    assert every_hundred("gradient_vanishing:layers", loss=decaying(2001), **layers) == []


def test_a_gradient_lost_in_the_first_half_of_the_layers_is_reported_at_the_first_measurement() -> None:
    lost = {"first": 1e-6, "second": 1e-5, "third": 1e-2, "last": 1.0}
    layers = layered("grad_norm", **{name: share * steady[:21] for name, share in lost.items()})
    losses = 2.3 * np.linspace(1, 0.95, 2001)
    (event,) = every_hundred("gradient_vanishing:layers", loss=losses, **layers)
    assert (event.step, event.place) == (100, "first")
    assert "gradient norm of first" in event.message


def test_parameters_of_the_model_or_of_a_container_itself_are_no_first_layer() -> None:
    for own in ("GPT", "blocks"):
        layers = {own: 1e-4 * steady[:21], "blocks.0": 0.3 * steady[:21], "blocks.1": steady[:21], "head": steady[:21]}
        stands = 2.3 + noise(5, 2001, 0.01)
        assert every_hundred("gradient_vanishing:layers", loss=stands, **layered("grad_norm", **layers)) == []
        layers |= {"blocks.0": 1e-4 * steady[:21]}
        (event,) = every_hundred("gradient_vanishing:layers", loss=stands, **layered("grad_norm", **layers))
        assert event.place == "blocks.0"


def test_a_branch_that_is_scaled_to_nothing_at_first_is_not_lost() -> None:
    scaled = layered("grad_norm", stem=steady[:21], a=1e-6 * steady[:21], b=1e-6 * steady[:21], head=steady[:21])
    assert every_hundred("gradient_vanishing:layers", loss=np.full(2001, 2.3), **scaled) == []


def test_one_layer_of_many_whose_gradient_is_nearly_nothing_is_named() -> None:
    layers = layered("grad_norm", first=steady[:21], second=1e-9 * steady[:21], last=steady[:21])
    (event,) = every_hundred("gradient_vanishing:layers", loss=np.full(2001, 2.3), **layers)
    assert event.place == "second"


def test_frozen_layers_whose_gradient_is_exactly_zero_do_not_vanish() -> None:
    layers = layered("grad_norm", first=np.zeros(21), a=steady[:21], b=steady[:21], last=steady[:21])
    assert every_hundred("gradient_vanishing:layers", loss=np.full(2001, 2.3), **layers) == []


def test_gradients_that_lie_far_apart_are_named() -> None:
    layers = layered("grad_norm", **{f"block_{n}": np.full(21, 10.0**-n) for n in range(5)})
    (event,) = every_hundred("gradient_imbalance", loss=np.full(2001, 2.0), **layers)
    assert (event.step, event.place, event.severity) == (500, "block_4", Severity.WARNING)
    assert "by a factor of 10,000" in event.message
    layers.pop("grad_norm@block_4")
    assert every_hundred("gradient_imbalance", loss=np.full(2001, 2.0), **layers) == []


def test_weights_that_lie_far_apart_are_no_more_than_information() -> None:
    layers = layered("param_norm", a=np.full(21, 5e-3), b=np.full(21, 1.0), c=np.full(21, 10.0))
    (event,) = every_hundred("weight_imbalance", loss=np.full(2001, 2.0), **layers)
    assert (event.step, event.place, event.severity) == (500, "a", Severity.INFO)


@pytest.mark.parametrize("decay", [1.0, 0.99], ids=["as they were", "decaying evenly"])
def test_a_layer_without_gradient_whose_weights_stay_is_dead(decay: float) -> None:
    weights = 3.0 * decay ** np.arange(21)
    layers = {**layered("param_norm", head=weights, body=steady[:21]), **layered("grad_norm", head=np.zeros(21))}
    (event,) = every_hundred("dead_layer", loss=np.full(2001, 2.0), **layers, **layered("grad_norm", body=steady[:21]))
    assert event.place == "head"
    assert 500 <= event.step <= 700
    assert event.severity is Severity.WARNING


def test_a_layer_that_is_used_by_few_batches_is_not_dead() -> None:
    weights = 3.0 + np.cumsum(np.abs(noise(6, 21, 0.01)))
    layers = {**layered("param_norm", rare=weights), **layered("grad_norm", rare=np.zeros(21))}
    assert every_hundred("dead_layer", loss=np.full(2001, 2.0), **layers) == []


def test_steps_without_a_loss_say_nothing_about_a_layer() -> None:
    layers = {**layered("param_norm", a=np.full(900, 3.0)), **layered("grad_norm", a=np.zeros(900))}
    assert judged("dead_layer", **layers) == []
    assert len(judged("dead_layer", loss=np.full(900, 2.0), **layers)) == 1


def test_several_dead_layers_are_one_finding() -> None:
    layers = layered("grad_norm", a=np.zeros(21), b=np.zeros(21), c=np.zeros(21))
    (event,) = every_hundred("dead_layer", loss=np.full(2001, 2.0), **layers)
    assert event.place == "a"


def test_a_layer_that_is_measured_at_every_step_is_not_dead_after_five() -> None:
    assert judged("dead_layer", **layered("grad_norm", a=np.zeros(390))) == []


def test_large_updates_of_the_whole_model_are_reported_once_for_all_layers() -> None:
    high = np.where(np.arange(200) < 50, 1e-3, 0.3)
    series = {"update_ratio": high, **layered("update_ratio", a=high, b=high)}
    event, worse = judged("update_ratio_high", loss=np.full(200, 2.3), **series)
    assert (event.step, event.place, event.severity) == (52, "", Severity.INFO)
    assert (worse.step, worse.severity) == (99, Severity.WARNING)
    (falls,) = judged("update_ratio_high", loss=np.linspace(2.3, 0.5, 200), **series)
    assert (falls.step, falls.severity) == (52, Severity.INFO)
    assert "1e-3 to 1e-2 is common" in event.message


def test_large_updates_of_one_layer_take_longer_to_be_found() -> None:
    high = np.where(np.arange(200) < 50, 1e-3, 0.3)
    (event,) = judged("update_ratio_high", **{"update_ratio": 1e-3 * steady[:200], **layered("update_ratio", a=high)})
    assert (event.step, event.place) == (59, "a")


def test_first_steps_from_weights_at_zero_are_no_large_updates() -> None:
    assert judged("update_ratio_high", update_ratio=np.maximum(1 / (1 + np.arange(200)) ** 1.2, 1e-3)) == []


def test_small_updates_at_an_intentionally_small_learning_rate_are_no_finding() -> None:
    rate = np.r_[np.full(100, 1e-3), np.full(100, 1e-8)]
    assert judged("update_ratio_low", learning_rate=rate, update_ratio=rate) == []
    flat = {"learning_rate": np.full(200, 1e-3), "update_ratio": np.full(200, 1e-9)}
    findings = judged("update_ratio_low", loss=np.full(200, 2.3), **flat)
    assert [(finding.step, finding.severity) for finding in findings] == [(4, Severity.INFO), (99, Severity.WARNING)]


def test_a_layer_that_was_not_updated_at_all_has_no_small_updates_but_a_whole_model_has() -> None:
    rate = np.full(200, 1e-3)
    assert judged("update_ratio_low", learning_rate=rate, **layered("update_ratio", a=np.zeros(200))) == []
    assert len(judged("update_ratio_low", learning_rate=rate, update_ratio=np.zeros(200))) == 1


def test_a_fivefold_weight_norm_is_no_spike() -> None:
    assert judged("weight_spike", param_norm=at(70 * steady[:300], 200, 5.0)) == []


def test_weights_of_several_layers_that_spike_together_are_one_finding() -> None:
    jump = at(70 * steady[:300], 200, 30.0, 3)
    (event,) = judged("weight_spike", **layered("param_norm", a=jump, b=jump))
    assert (event.step, event.place, event.severity) == (200, "a", Severity.WARNING)


def test_layers_measured_every_hundred_steps_in_a_run_where_nothing_changes_are_silent() -> None:
    layers = {**layered("param_norm", a=np.full(STEPS, 2.0)), **layered("grad_norm", a=np.full(STEPS, 0.1))}
    assert every_hundred("layer_explosion dead_layer weight_spike", loss=np.full(5901, 1.0), **layers) == []


def test_updates_that_are_large_now_and_then_are_one_finding() -> None:
    now_and_then = np.where(np.arange(200) % 10 < 4, 0.3, 1e-3)
    assert len(judged("update_ratio_high", update_ratio=now_and_then)) == 1
    again = np.r_[now_and_then[:60], np.full(40, 1e-3), now_and_then]
    assert len(judged("update_ratio_high", update_ratio=again)) == 2
