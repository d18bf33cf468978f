"""The benchmark `tutorials.py` runs all of them on three seeds; here are those that take few seconds."""

from __future__ import annotations

import pytest
from zoo.tutorials.catalog import TUTORIALS, tutorial_named
from zoo.tutorials.trial import ACTIONS, Trial, tried
from zoo.tutorials.tutorial import Tutorial

SEED = 0
LONG = ("double_dqn", "td3", "simclr", "dino", "dcgan", "wgan_gp", "vq_vae")
WITH_FALSE_ALARMS = ("transfer_learning",)
"""The level of a second phase is still called a divergence."""
QUICK = [tutorial for tutorial in TUTORIALS if tutorial.name not in LONG]
SILENT = [tutorial for tutorial in QUICK if tutorial.name not in WITH_FALSE_ALARMS]


def ends_as_bare(tutorial: Tutorial) -> Trial:
    bare, observed = tried(tutorial, SEED, "bare"), tried(tutorial, SEED, "rollback")
    assert bare.error == observed.error == ""
    assert bare.learned, f"{tutorial.name} is no healthy training: it ends at {bare.score:.4g}"
    assert observed.weights == bare.weights
    assert {kind: observed.actions(kind) for kind in ACTIONS} == dict.fromkeys(ACTIONS, 0)
    return observed


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", SILENT, ids=lambda tutorial: tutorial.name)
def test_a_healthy_training_with_rollbacks_enabled_ends_as_bare_without_a_warning(tutorial: Tutorial) -> None:
    assert ends_as_bare(tutorial).warnings == []


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_FALSE_ALARMS)
def test_a_false_alarm_changes_nothing_of_a_healthy_training(name: str) -> None:
    ends_as_bare(tutorial_named(name))


def test_every_tutorial_has_a_name_a_bound_and_a_description() -> None:
    assert len({tutorial.name for tutorial in TUTORIALS}) == len(TUTORIALS) >= 40
    assert all(tutorial.train.__doc__ for tutorial in TUTORIALS)
    assert all((tutorial.at_least > float("-inf")) != (tutorial.at_most < float("inf")) for tutorial in TUTORIALS)
