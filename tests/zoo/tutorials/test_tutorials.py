"""The benchmark `tutorials` runs all of them on three seeds, each beside bare training.

Here are one or two of each family that take few seconds. Those that reach into training in different ways run beside
bare training, too.
"""

from __future__ import annotations

from functools import cache

import pytest
from zoo.tutorials.catalog import TUTORIALS, tutorial_named
from zoo.tutorials.trial import ACTIONS, Trial, tried
from zoo.tutorials.tutorial import Tutorial

SEED = 0
BESIDE_BARE = ("mixed_precision", "style_transfer_lbfgs", "quantization_aware", "uneven_accumulation", "layer_by_layer")
HERE = (
    *BESIDE_BARE,
    *("ppo", "ema_teacher", "word_language_model", "transfer_learning", "vae_warm_up", "reptile", "heat_equation"),
    *("graph_convolution", "swa"),
)


@cache
def observed_trial(tutorial: Tutorial) -> Trial:
    return tried(tutorial, SEED, "rollback")


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_a_healthy_training_with_rollbacks_enabled_learns_without_a_warning(name: str) -> None:
    observed = observed_trial(tutorial_named(name))
    assert observed.error == ""
    assert observed.learned, f"{name} is no healthy training: it ends at {observed.score:.4g}"
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
