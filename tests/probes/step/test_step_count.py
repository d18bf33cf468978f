from __future__ import annotations

from mlflow_stability.probes.step.script_gradients import MAX_EXPECTED_STEPS, StepCount


def walk(tracks: str) -> list[tuple[bool, bool]]:
    """For each capture of these tracks, whether it began a step and whether the step was whole after it."""
    steps = StepCount()
    return [(steps.begins(ord(track)), steps.is_whole) for track in tracks]


def test_a_training_alone_has_whole_steps() -> None:
    assert walk("aaa") == [(True, True)] * 3


def test_the_halves_of_a_gan_make_one_step_that_is_whole_after_both() -> None:
    assert walk("abab")[1:] == [(False, True), (True, False), (False, True)]


def test_a_generator_that_steps_more_seldom_is_waited_for() -> None:
    assert [whole for _, whole in walk("aaab" * 3)][4:] == [False, False, False, True] * 2
    assert sum(begins for begins, _ in walk("aaab" * 3)) == 9


def test_a_track_that_has_ended_is_not_waited_for() -> None:
    assert [whole for _, whole in walk("abab" + "a" * 4)][4:] == [False, False, True, True]
    rare = walk("ab" + "a" * 99 + "b" + "a" * 40)
    assert [whole for _, whole in rare][-40:].count(False) == MAX_EXPECTED_STEPS
