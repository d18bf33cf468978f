from __future__ import annotations

import math

from mlflow_stability.figures.loss_pairs import LossPair, loss_pairs

FALLING = tuple(2.0 * 0.99**step for step in range(200))


def test_each_pair_has_a_panel_with_both_losses_and_the_first_finding() -> None:
    broken = (*FALLING[:100], *(math.nan,) * 100)
    pairs = [LossPair(f"failure {number}", "bad batch: right", FALLING, broken, 100) for number in range(4)]
    figure = loss_pairs(pairs, "Simulated failures")
    assert [panel.get_title(loc="left") for panel in figure.axes] == [pair.name for pair in pairs]
    healthy, failure, finding = figure.axes[0].lines
    assert len(healthy.get_xdata()) == len(failure.get_xdata()) == 200
    assert list(finding.get_xdata()) == [100, 100]
    assert figure.axes[0].get_yscale() == "log"


def test_losses_at_or_below_zero_are_drawn_on_a_linear_scale() -> None:
    pair = LossPair("signed", "no cause named", FALLING, tuple(-loss for loss in FALLING), None)
    (panel,) = loss_pairs([pair], "Simulated failure: signed").axes
    assert panel.get_yscale() == "linear"
    assert len(panel.lines) == 2
