from __future__ import annotations

import numpy as np
import pytest
from diagnosis.cards import made

from mlflow_stability.diagnosis.cohort.cohort import MAX_RATES, sensitivity_of
from mlflow_stability.vocabulary.result import RunCard


def swept(width: int, rates: tuple[float, ...], loss: float, **more: float) -> list[RunCard]:
    params = {"width": width, **more}
    return [
        made(f"{width}-{rate}", {**params, "lr": rate, "min_lr": rate / 10}, final=loss + abs(np.log10(rate) + 2))
        for rate in rates
    ]


def test_a_width_that_only_low_rates_were_tried_with_is_not_taken_for_the_rate() -> None:
    """The wide model is far better, and was trained at 0.001 alone."""
    cards = [*swept(64, (0.001, 0.01, 0.1), 2.0), *swept(512, (0.001,), 0.5)]
    sensitivity, text = sensitivity_of(cards)
    assert sensitivity is not None
    assert (sensitivity.best_rate, sensitivity.rates, sensitivity.losses) == (0.01, (0.001, 0.01, 0.1), (3.0, 2.0, 3.0))
    assert "1 of 4 runs" in text


def test_sweeps_of_several_widths_are_averaged_over_the_rates_that_all_of_them_have() -> None:
    cards = [*swept(64, (0.001, 0.01, 0.1, 1.0), 2.0), *swept(512, (0.001, 0.01, 0.1), 0.0)]
    sensitivity, _ = sensitivity_of(cards)
    assert sensitivity is not None
    assert (sensitivity.rates, sensitivity.losses, sensitivity.runs) == ((0.001, 0.01, 0.1), (2.0, 1.0, 2.0), (2, 2, 2))
    assert sensitivity.sensitivity == pytest.approx(2 / 3)


def test_the_many_rates_of_a_random_search_are_grouped_with_a_note() -> None:
    dice = np.random.default_rng(0)
    cards = [
        made(f"r{n}", {"lr": rate, "decay": dice.uniform()}, final=2 + dice.uniform() + abs(np.log10(rate) + 3))
        for n, rate in enumerate(10 ** dice.uniform(-5, -1, 100))
    ]
    sensitivity, text = sensitivity_of(cards)
    assert sensitivity is not None
    assert len(sensitivity.rates) <= MAX_RATES
    assert sum(sensitivity.runs) == 100
    assert sensitivity.best_rate == pytest.approx(1e-3, rel=0.8)
    assert "all runs are taken together" in text


def test_a_run_that_was_stopped_early_does_not_count_for_its_rate() -> None:
    cards = swept(64, (0.001, 0.01, 0.1), 2.0)
    cards.append(made("killed", {"width": 64, "lr": 0.01, "min_lr": 0.001}, final=30.0, last=50))
    sensitivity, text = sensitivity_of(cards)
    assert sensitivity is not None
    assert sensitivity.losses == (3.0, 2.0, 3.0)
    assert "1 of 4 runs" in text


def test_a_second_sweep_over_other_rates_is_left_out_and_that_is_not_called_what_it_is_not() -> None:
    cards = [*swept(64, (0.001, 0.01, 0.1, 1.0), 2.0), *swept(512, (0.002, 0.02, 0.2), 0.5)]
    sensitivity, text = sensitivity_of(cards)
    assert sensitivity is not None
    assert (sensitivity.rates, sum(sensitivity.runs)) == ((0.001, 0.01, 0.1, 1.0), 4)
    assert text.startswith("What the learning rate does in 3 of 7 runs: they differ from the other 4 in more")
    assert "have rates that those have not" in text
