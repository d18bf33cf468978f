"""What belongs to learning is no finding: sparse units, single hard examples, heads that look where they should."""

from __future__ import annotations

import numpy as np
import pytest
from detectors.series import Floats, decaying, judged, noise

from mlflow_stability.vocabulary.result import Severity

MEASURED = 12
"""The given number of measurements of a layer, one every 20 steps."""


def measured(share: float, loss: Floats) -> dict[str, list[float | None] | Floats]:
    """A share of a layer beside a loss of every step."""
    return {"loss": loss, "activation_dead@a": [share if step % 20 == 19 else None for step in range(len(loss))]}


STUCK = np.full(20 * MEASURED, 2.3) + noise(0, 20 * MEASURED, 0.01)
FALLING = 2.3 * np.exp(-np.arange(20 * MEASURED) / 30) + 0.4
LEARNT = 2.3 * np.exp(-np.arange(20 * MEASURED) / 5) + 1e-4


@pytest.mark.parametrize(
    ("share", "loss", "kinds"),
    [
        (0.6, STUCK, ["dead_units"]),
        (0.6, FALLING, []),
        (0.95, FALLING, ["dead_units"]),
        (0.95, LEARNT, []),
    ],
    ids=["most at chance", "most while it learns", "nearly all while it learns", "nearly all when all is learnt"],
)
def test_units_are_dead_by_what_the_loss_does_without_them(share: float, loss: Floats, kinds: list[str]) -> None:
    first = 60 if share > 0.9 and loss is LEARNT else 30
    quiet = measured(share, loss)
    quiet["activation_dead@a"] = [
        share if step >= first else None for step, share in enumerate(quiet["activation_dead@a"])
    ]
    assert sorted({event.kind for event in judged("dead_units", **quiet)}) == kinds


def test_units_that_die_at_once_are_dead_and_those_that_a_layer_learns_to_do_without_are_not() -> None:
    measurements = len(FALLING) // 20
    at_once = [0.01] * (measurements - 5) + [0.83] * 5
    little_by_little = list(np.linspace(0.01, 0.83, measurements))
    kinds_found = []
    for shares in (at_once, little_by_little):
        series = [shares[step // 20] if step % 20 == 19 else None for step in range(len(FALLING))]
        kinds_found.append(
            [event.kind for event in judged("dead_units", **{"loss": FALLING, "activation_dead@a": series})]
        )
    assert kinds_found == [["dead_units"], []]


def test_an_activation_that_is_sure_of_what_was_learnt_is_not_pinned() -> None:
    sure = [0.9 if step % 20 == 19 and step > 60 else None for step in range(len(LEARNT))]
    assert judged("saturated_activation", **{"loss": LEARNT, "activation_saturation@a": sure}) == []
    (event,) = judged("saturated_activation", **{"loss": STUCK, "activation_saturation@a": sure})
    assert event.place == "a"


def test_a_hard_example_in_a_loss_near_zero_is_no_spike_and_a_loss_that_is_lost_is_one() -> None:
    floor = 1e-3 * np.exp(noise(1, 800, 0.55))
    loss = 2.3 * np.exp(-np.arange(800) / 20) + floor
    hard, lost = loss.copy(), loss.copy()
    hard[600], lost[600] = 0.3, 4.0
    assert judged("loss_spike", loss=hard) == []
    assert [event.step for event in judged("loss_spike", loss=lost)] == [600]


def test_a_quiet_loss_far_below_its_start_still_has_spikes() -> None:
    loss = 100 * np.exp(-np.arange(800) / 20) + 1.5 * np.exp(noise(1, 800, 0.02))
    loss[600] *= 3
    assert [event.step for event in judged("loss_spike", loss=loss)] == [600]


def of_players(*losses: Floats, **others: Floats) -> dict[str, Floats]:
    first, second = losses
    return {"loss": first, "loss@track_1": second, **others}


def test_what_one_player_loses_as_the_other_learns_is_neither_spike_nor_plateau_nor_explosion() -> None:
    steps = np.arange(1600)
    other = 0.7 + noise(2, 1600, 0.02)
    standing = 1.386 + noise(3, 1600, 0.005)
    assert judged("plateau", loss=standing) != []
    assert judged("plateau", **of_players(standing, other)) == []
    leaping = decaying(1600, 0.7, 1.4) + noise(4, 1600, 0.01)
    leaping[900] *= 3
    assert judged("loss_spike", loss=leaping) != []
    assert judged("loss_spike", **of_players(leaping, other)) == []
    norms = np.exp(noise(5, 1600, 0.1)) * np.where((steps > 900) & (steps < 920), 8.5, 1.0)
    assert judged("gradient_explosion", loss=standing, grad_norm=norms) != []
    assert judged("gradient_explosion", **of_players(standing, other, grad_norm=norms)) == []


def test_a_player_that_blows_up_is_found_as_before() -> None:
    other = 0.7 + noise(2, 1600, 0.02)
    blown = 1.386 * np.exp(noise(3, 1600, 0.05)) * np.where(np.arange(1600) > 1200, 50.0, 1.0)
    kinds = {event.kind for event in judged("divergence loss_spike", **of_players(blown, other))}
    assert kinds == {"divergence", "loss_spike"}


def test_noise_that_only_becomes_less_is_no_repeated_batch() -> None:
    rough = 0.1 * np.exp(noise(6, 600, 0.12))
    uniform = 2.303 + noise(7, 600, 0.02)  # every label is as likely as any other: the loss hardly depends on the batch
    assert judged("repeated_data", loss=np.r_[rough, uniform]) == []


def test_a_loss_that_crosses_zero_says_nothing_of_repeated_batches() -> None:
    loss = np.sin(np.arange(1500) / 300) + noise(8, 1500, 0.05)
    loss[1200:] = loss[1199] + 1e-4 * np.arange(300)
    assert judged("repeated_data", loss=loss) == []


def test_a_rise_far_below_the_start_is_information_until_it_costs_more() -> None:
    loss = np.geomspace(2, 0.002, 800) * np.exp(noise(0, 800, 0.1))
    loss[600:700] = 0.05
    assert {event.severity for event in judged("divergence loss_spike", loss=loss)} == {Severity.INFO}
    loss[620:700] = 0.5
    assert max(event.severity for event in judged("divergence", loss=loss)) is Severity.CRITICAL
