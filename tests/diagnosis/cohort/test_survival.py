from __future__ import annotations

import numpy as np
from diagnosis.cards import made

from mlflow_stability.diagnosis.cohort.cohort import MAX_PARTS, cohort_of, survival_of


def test_the_best_and_worst_of_many_groups_are_shown_and_p_values_are_corrected_for_all() -> None:
    parts = {
        f"p{number:02d}": [made(f"{number}-{n}", {}, lost=10 + n if number >= 18 else None) for n in range(5)]
        for number in range(20)
    }
    cards = [card for part in parts.values() for card in part]
    _, *shown = survival_of(cards, parts)
    assert len(shown) == MAX_PARTS
    assert [item.lost for item in shown[-2:]] == [5, 5]
    _, *alone = survival_of(cards, {"p18": parts["p18"], "p17": parts["p17"]})
    assert shown[-2].p_value is not None
    assert alone[0].p_value is not None
    assert alone[0].p_value < shown[-2].p_value < 0.05


def test_runs_without_the_parameter_are_a_group_of_their_own() -> None:
    cards = [made(f"r{n}", {"clip": n}, lost=20 if n > 20 else None) for n in range(1, 41)]
    cards += [made(f"unset{n}", {}) for n in range(10)]
    cohort = cohort_of(cards)
    assert cohort is not None
    assert [(item.label, item.runs) for item in cohort.survival[1:]] == [
        ("clip ≤ 20.5", 20),
        ("clip > 20.5", 20),
        ("clip not set", 10),
    ]


def test_a_parameter_that_is_mostly_at_its_highest_value_is_split_below_it() -> None:
    cards = [
        made(f"r{n}", {"warmup": (0, 50, 200)[min(n % 5, 2)], "x": n / 7}, lost=None if n % 5 else 20)
        for n in range(60)
    ]
    cohort = cohort_of(cards)
    assert cohort is not None
    assert [item.label for item in cohort.survival[1:]] == ["warmup ≤ 50", "warmup > 50"]


def test_three_runs_lost_by_chance_rarely_differ_significantly_from_the_others() -> None:
    count = 0
    for number in range(150):
        dice = np.random.default_rng(number)
        times = [int(dice.exponential(700)) + 1 for _ in range(12)]
        cards = [made(f"{n}", {}, lost=time if time < 1000 else None) for n, time in enumerate(times)]
        _, part, _ = survival_of(cards, {"three": cards[:3], "others": cards[3:]})
        count += part.p_value is not None and part.p_value < 0.01
    assert count <= 3


def test_the_band_does_not_rise_again_where_all_are_lost() -> None:
    cards = [made(f"{number}", {}, lost=10 + number) for number in range(5)]
    (curve,) = survival_of(cards, {})
    assert curve.shares[-1] == 0
    assert list(curve.high) == sorted(curve.high, reverse=True)
    assert curve.high[-1] < 1
