"""Remedies: sentences made from numbers, and what is written of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.kinds.catalog import RULES, TYPES
from mlflow_stability.vocabulary.result import (
    CLIP_GRADIENTS,
    LOWER_RATE,
    LOWER_RATE_2_TO_5,
    LOWER_RATE_2_TO_5_OR_CLIP,
    RATE_TOPICS,
    SMALLER_UPDATE_TOPICS,
    Action,
    Remedy,
    read_remedies,
    without_topics,
)

LOWER = Action.LOWER_LEARNING_RATE
AMOUNTS = st.one_of(st.none(), st.floats(allow_nan=False), st.tuples(*[st.floats(allow_nan=False)] * 2))
REMEDIES = st.builds(
    Remedy,
    st.sampled_from(Action),
    target=AMOUNTS,
    factor=AMOUNTS,
    baseline=st.one_of(st.none(), st.floats(allow_nan=False)),
    step=st.one_of(st.none(), st.integers(0)),
    unit=st.sampled_from(["step", "epoch"]),
    module=st.text(),
    path=st.text(),
    text=st.text(),
    conditional=st.booleans(),
    alternative=st.one_of(st.none(), st.builds(Remedy, st.just(Action.CLIP_GRADIENTS), target=AMOUNTS)),
)


@pytest.mark.parametrize(
    ("remedy", "sentence"),
    [
        (LOWER_RATE, "Lower the learning rate."),
        (LOWER_RATE_2_TO_5, "Lower the learning rate by a factor of 2 to 5."),
        (LOWER_RATE_2_TO_5_OR_CLIP, "Lower the learning rate by a factor of 2 to 5, or clip gradients."),
        (Remedy(LOWER, factor=443.2), "Lower the learning rate by a factor of about 440."),
        (
            Remedy(LOWER, target=0.1, factor=61.7, baseline=8.0),
            "Lower the learning rate from 8 to about 0.1, 62 times less.",
        ),
        (
            Remedy(LOWER, target=0.01, baseline=0.03),
            "Lower the learning rate from 0.03 to 0.01, which was stable.",
        ),
        (CLIP_GRADIENTS, "Clip gradients."),
        (Remedy(Action.CLIP_GRADIENTS, target=1.0), "Clip gradients at 1.0."),
        (Remedy(Action.CLIP_GRADIENTS, baseline=1.0), "Clip gradients at less than 1."),
        (Remedy(Action.CLIP_GRADIENTS, target=0.5, baseline=1.0), "Clip gradients at 0.5 instead of 1."),
        (Remedy(Action.CLIP_GRADIENTS_AGAIN), "Clip gradients again."),
        (Remedy(Action.CLIP_GRADIENTS_AGAIN, target=0.5, step=300), "Clip gradients at 0.5 again, as up to step 300."),
        (Remedy(Action.INSPECT_BATCH), "Inspect the batch at this step."),
        (Remedy(Action.INSPECT_BATCH, step=7, unit="epoch"), "Inspect the batch at epoch 7."),
        (Remedy(Action.INSPECT_BATCH, step=7, path="/a b.pt"), "Inspect the batch at step 7 (saved as /a b.pt)."),
        (Remedy(Action.SWAP_BETAS, target=(0.9, 0.99)), "Swap betas to (0.9, 0.99)."),
    ],
)
def test_a_sentence_says_what_is_known(remedy: Remedy, sentence: str) -> None:
    assert str(remedy) == remedy.sentence == sentence


def test_the_more_is_known_the_more_exact_it_is() -> None:
    remedies = [LOWER_RATE, LOWER_RATE_2_TO_5, Remedy(LOWER, target=0.1, baseline=1.0, factor=10.0)]
    assert [remedy.exactness for remedy in remedies] == [0, 1, 2]
    assert Remedy(Action.INSPECT_BATCH, step=0).exactness > Remedy(Action.INSPECT_BATCH).exactness


def test_without_a_topic_an_alternative_is_left() -> None:
    other = Remedy(Action.USE_MORE_BITS)
    remedies = (LOWER_RATE_2_TO_5, LOWER_RATE_2_TO_5_OR_CLIP, other)
    assert without_topics(remedies, RATE_TOPICS) == (CLIP_GRADIENTS, other)
    assert without_topics(remedies, SMALLER_UPDATE_TOPICS) == (other,)
    assert without_topics(remedies, {CLIP_GRADIENTS.topic}) == (LOWER_RATE_2_TO_5, LOWER_RATE_2_TO_5, other)  # type: ignore[arg-type]


@given(REMEDIES)
def test_what_is_written_is_read_back(remedy: Remedy) -> None:
    written = json.loads(json.dumps(remedy.as_json(), allow_nan=False))
    assert written["sentence"] == str(remedy)
    assert read_remedies([written]) == (remedy,)


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    remedy = Remedy(LOWER, target=np.float64(0.1), baseline=np.float64(math.inf), step=np.int64(7))  # type: ignore[arg-type]
    written = json.loads(json.dumps(remedy.as_json(), allow_nan=False))
    assert (written["target"], written["baseline"], written["step"]) == (0.1, "inf", 7)


def declared() -> set[Remedy]:
    every = {remedy for kind in (*TYPES, *RULES) for remedy in kind.remedies}
    return every | {remedy for cause in causes().values() for remedy in cause.remedies}


def test_each_declared_remedy_has_a_sentence_of_its_own_by_which_it_is_found() -> None:
    every = declared()
    assert len({str(remedy) for remedy in every}) == len(every) > 100
    for remedy in every:
        assert read_remedies([str(remedy)]) == (remedy,)


def test_a_recorded_sentence_without_a_current_remedy_stays_unchanged() -> None:
    (remedy,) = read_remedies(["Look at the {batch} of this step."])
    assert (remedy.action, str(remedy)) == (Action.IN_WORDS, "Look at the {batch} of this step.")


def test_an_action_of_a_later_version_keeps_its_sentence() -> None:
    (remedy,) = read_remedies([{"action": "ask_a_friend", "step": 7, "sentence": "Ask a friend."}])
    assert remedy == Remedy(Action.IN_WORDS, text="Ask a friend.")
