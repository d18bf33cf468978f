"""The benchmark `tutorials` runs all of them on three seeds; here are those that take few seconds."""

from __future__ import annotations

import pytest
from zoo.tutorials.catalog import TUTORIALS
from zoo.tutorials.trial import ACTIONS, tried
from zoo.tutorials.tutorial import Tutorial

SEED = 0
LONG = ("double_dqn", "td3", "simclr", "siamese_triplets", "moco", "dino", "dcgan", "wgan_gp", "vq_vae", "maml")
QUICK = [tutorial for tutorial in TUTORIALS if tutorial.name not in LONG]


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", QUICK, ids=lambda tutorial: tutorial.name)
def test_a_healthy_training_with_rollbacks_enabled_ends_as_bare_without_a_warning(tutorial: Tutorial) -> None:
    bare, observed = tried(tutorial, SEED, "bare"), tried(tutorial, SEED, "rollback")
    assert bare.error == observed.error == ""
    assert bare.learned, f"{tutorial.name} is no healthy training: it ends at {bare.score:.4g}"
    assert observed.weights == bare.weights
    assert {kind: observed.actions(kind) for kind in ACTIONS} == dict.fromkeys(ACTIONS, 0)
    assert observed.warnings == []


def test_every_tutorial_has_a_name_a_bound_and_a_description() -> None:
    assert len({tutorial.name for tutorial in TUTORIALS}) == len(TUTORIALS) >= 40
    assert all(tutorial.train.__doc__ for tutorial in TUTORIALS)
    assert all((tutorial.at_least > float("-inf")) != (tutorial.at_most < float("inf")) for tutorial in TUTORIALS)
