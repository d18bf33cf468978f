"""The benchmark `tutorials` runs all of them on three seeds, each beside bare training.

Here are those that take few seconds. A few that reach into training in different ways run beside bare training, too.
"""

from __future__ import annotations

from functools import cache

import pytest
from zoo.tutorials.catalog import TUTORIALS, tutorial_named
from zoo.tutorials.trial import ACTIONS, Trial, tried
from zoo.tutorials.tutorial import Tutorial

SEED = 0
LONG = (
    *("double_dqn", "td3", "soft_actor_critic", "reinforce", "simclr", "siamese_triplets", "moco", "dino"),
    *("dcgan", "wgan_gp", "vq_vae", "maml"),
)
QUICK = [tutorial for tutorial in TUTORIALS if tutorial.name not in LONG]
BESIDE_BARE = (
    *("ema_teacher", "names_rnn", "transfer_learning", "quantization_aware", "mixed_precision"),
    *("style_transfer_lbfgs", "ddpm", "uneven_accumulation", "layer_by_layer", "swa"),
)


@cache
def observed_trial(tutorial: Tutorial) -> Trial:
    return tried(tutorial, SEED, "rollback")


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", QUICK, ids=lambda tutorial: tutorial.name)
def test_a_healthy_training_with_rollbacks_enabled_learns_without_a_warning(tutorial: Tutorial) -> None:
    observed = observed_trial(tutorial)
    assert observed.error == ""
    assert observed.learned, f"{tutorial.name} is no healthy training: it ends at {observed.score:.4g}"
    assert {kind: observed.actions(kind) for kind in ACTIONS} == dict.fromkeys(ACTIONS, 0)
    assert observed.warnings == []


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE_BARE)
def test_it_ends_with_the_weights_of_bare_training(name: str) -> None:
    bare, observed = tried(tutorial_named(name), SEED, "bare"), observed_trial(tutorial_named(name))
    assert bare.error == observed.error == ""
    assert observed.weights == bare.weights


def test_every_tutorial_has_a_name_a_bound_and_a_description() -> None:
    assert len({tutorial.name for tutorial in TUTORIALS}) == len(TUTORIALS) >= 40
    assert all(tutorial.train.__doc__ for tutorial in TUTORIALS)
    assert all((tutorial.at_least > float("-inf")) != (tutorial.at_most < float("inf")) for tutorial in TUTORIALS)
