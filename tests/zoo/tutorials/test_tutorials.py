from __future__ import annotations

import pytest
from zoo.tutorials.catalog import TUTORIALS
from zoo.tutorials.trial import tried
from zoo.tutorials.tutorial import Tutorial

SEED = 0


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda tutorial: tutorial.name)
def test_a_training_reaches_the_score_of_a_healthy_one(tutorial: Tutorial) -> None:
    bare = tried(tutorial, SEED, "bare")
    assert bare.error == ""
    assert bare.learned, f"{tutorial.name} ends at {bare.score:.4g}"


def test_every_tutorial_has_a_name_a_bound_and_a_description() -> None:
    assert len({tutorial.name for tutorial in TUTORIALS}) == len(TUTORIALS) >= 40
    assert all(tutorial.train.__doc__ for tutorial in TUTORIALS)
    assert all((tutorial.at_least > float("-inf")) != (tutorial.at_most < float("inf")) for tutorial in TUTORIALS)
