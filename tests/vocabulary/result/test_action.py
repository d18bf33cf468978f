"""Actions: each has a sentence of its own, and opposites exclude each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlflow_stability.vocabulary.result import Action, Need, Remedy, Topic

WITH_PARTS = {
    Action.WARM_UP_LEARNING_RATE: Remedy(Action.WARM_UP_LEARNING_RATE, target=(1.0, 5.0)),
    Action.LOWER_BETA2: Remedy(Action.LOWER_BETA2, target=(0.95, 0.98)),
    Action.SWAP_BETAS: Remedy(Action.SWAP_BETAS, target=(0.9, 0.99)),
    Action.RAISE_OR_LOWER_LEARNING_RATE: Remedy(Action.RAISE_OR_LOWER_LEARNING_RATE, factor=10.0),
    Action.INSPECT_MODULE: Remedy(Action.INSPECT_MODULE, module="blocks.0"),
    Action.SET_EPS_OF_OPTIMIZER: Remedy(Action.SET_EPS_OF_OPTIMIZER, module="Adam"),
    Action.IN_WORDS: Remedy(Action.IN_WORDS, text="Cross your fingers."),
}
"""A remedy for each action whose sentence is nothing without numbers or names."""


def test_each_action_has_a_sentence_with_and_without_a_condition() -> None:
    remedies = [WITH_PARTS.get(action, Remedy(action)) for action in Action]
    for sentence in map(str, (*remedies, *(replace(remedy, conditional=True) for remedy in remedies))):
        assert sentence[0].isupper(), sentence
        assert sentence.endswith("."), sentence
        assert not any(part in sentence for part in ("  ", "nan", "{")), sentence


def test_no_two_actions_have_the_same_sentence() -> None:
    assert len(Action.__members__) == len(Action), "two members with the same value are one action"
    assert len({action.sentence for action in Action}) == len(Action)


def test_topics_contradict_each_other_in_both_directions() -> None:
    pairs = {(topic, other) for topic in Topic for other in topic.contradicts}
    assert pairs == {(other, topic) for topic, other in pairs}
    assert (Topic.LOWER_RATE, Topic.RAISE_RATE) in pairs


def test_an_action_contradicts_what_its_topic_contradicts_unless_it_names_both_directions() -> None:
    assert Topic.RAISE_RATE in Action.LOWER_LEARNING_RATE.contradicts
    assert Topic.LOWER_RATE in Action.RAISE_LEARNING_RATE.contradicts
    assert not Action.RAISE_OR_LOWER_LEARNING_RATE.contradicts
    assert not Action.USE_MORE_BITS.contradicts


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (Action.RESTART_FROM_LAST_GOOD, "Restart from the last good checkpoint, if there is one."),
        (Action.TRAIN_IN_BF16, "If it trains in fp16: train in bf16 instead."),
        (Action.LOWER_LOSS_SCALE, "If it trains in fp16: lower the loss scale."),
        (Action.LOWER_SCALE_OF_SCALER, "With a loss scaler: lower the loss scale."),
        (Action.USE_MORE_BITS, "Use more bits."),
    ],
)
def test_what_may_not_be_there_is_a_condition(action: Action, sentence: str) -> None:
    assert str(Remedy(action, conditional=True)) == sentence


def test_every_need_and_every_topic_is_that_of_an_action() -> None:
    assert {action.need for action in Action} == {None, *Need}
    assert {action.topic for action in Action} == {None, *Topic}


def test_actions_that_look_for_an_origin_need_nothing() -> None:
    looking = [action for action in Action if action.looks_for_origin]
    assert Action.FIND_FIRST_NAN_MODULE in looking
    assert all(action.need is None for action in looking)
