from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from detectors.series import judged

from mlflow_stability.vocabulary.result import Finding, Severity

MEASUREMENTS = 10


def router(load: Sequence[float], experts: int = 8, active: float = 2.0, tokens: float = 512) -> list[Finding]:
    count = len(load)
    numbers = {"tokens": tokens, "experts": experts, "active": active}
    series = {f"router_{name}@gate": [value] * count for name, value in numbers.items()}
    series |= {"router_load_entropy@gate": list(load), "router_max_share@gate": [0.5] * count}
    return judged("router_collapse", **series)


def test_a_router_that_uses_few_experts_in_three_measurements_has_collapsed() -> None:
    (event,) = router([0.95] * 4 + [0.4] * 6)  # 8 ** 0.4 is 2.3 experts
    assert (event.step, event.place, event.severity) == (6, "gate", Severity.WARNING)
    assert "uses 2.3 of 8 experts" in event.message
    assert "threshold 4.0" in event.message
    assert event.remedies


@pytest.mark.parametrize("load", [[0.8] * 10, [0.4, 0.4, 0.9] * 3])
def test_a_router_that_uses_most_or_only_at_times_few_has_not(load: list[float]) -> None:
    assert router(load) == []


def test_the_fewest_possible_experts_are_those_of_a_token() -> None:
    assert router([0.7] * 6, experts=8, active=2.0) == []  # 4.3 experts, and each token goes to 2
    assert len(router([0.7] * 6, experts=8, active=4.0)) == 1
    assert len(router([0.3] * 6, experts=8, active=8.0)) == 1  # a soft mixture


def test_tokens_that_are_dropped_do_not_hide_a_collapse() -> None:
    assert len(router([0.52] * 6, active=0.41)) == 1  # 2.9 of 8 experts, and each token was to go to one


def test_few_tokens_are_not_judged() -> None:
    assert router([0.1] * 10, tokens=20) == []


def experts(shares: Sequence[Sequence[float]], tokens: float = 100, every: int = 100) -> list[Finding]:
    """Shares by expert and measurement."""
    count = len(shares[0])
    numbers = {"tokens": tokens, "experts": float(len(shares)), "active": 2.0}
    series: dict[str, list[float]] = {f"router_{name}@gate": [value] * count for name, value in numbers.items()}
    series |= {f"router_share@gate.expert_{at}": list(item) for at, item in enumerate(shares)}
    apart = {
        name: [value if at == 0 else None for value in item for at in range(every)] for name, item in series.items()
    }
    return judged("dead_expert", loss=[1.0] * count * every, **apart)


def even(but: Mapping[int, Sequence[float]], count: int = 8) -> list[list[float]]:
    return [list(but.get(at, [1 / count] * MEASUREMENTS)) for at in range(count)]


def test_an_expert_without_tokens_is_dead_after_five_measurements() -> None:
    (event,) = experts(even({3: [0.125] * 3 + [0.0] * 7}))
    assert event.step == 700
    assert (event.place, event.severity) == ("gate", Severity.WARNING)
    assert "1 of 8 experts of gate got less than 2% of an even share from step 300 to step 700: 3." in event.message


def test_an_expert_with_few_tokens_or_a_pause_is_not_dead() -> None:
    assert experts(even({3: [0.01] * MEASUREMENTS})) == []
    assert experts(even({3: [0.0, 0.0, 0.0, 0.1] * 2 + [0.0] * 2})) == []


def test_few_tokens_or_few_steps_do_not_show_that_an_expert_is_dead() -> None:
    assert experts(even({3: [0.0] * MEASUREMENTS}), tokens=10) == []
    (event,) = experts(even({3: [0.0] * MEASUREMENTS}), every=25)
    assert event.step == 200


def test_one_dead_expert_of_many_is_information_and_is_reported_again_when_the_number_doubles() -> None:
    dead = {3: [0.0] * MEASUREMENTS, 7: [0.02] * 2 + [0.0] * 8}
    first, second = experts(even(dead, 32), tokens=1000)
    assert (first.severity, first.step) == (Severity.INFO, 400)
    assert (second.step, "2 of 32 experts" in second.message) == (600, True)
