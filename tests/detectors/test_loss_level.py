"""Which losses have a level: by turns, by signs, by what was recorded and by what the user set."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from mlflow_stability.detectors.loss_level import LossLevels, keeps_changing_sign
from mlflow_stability.vocabulary.loss_level import (
    LOSS_LEVEL,
    LOSS_WORDS,
    LossLevel,
    NoLevel,
    level_from_code,
    level_from_word,
)

RNG = np.random.default_rng(0)
STEPS = np.arange(2000)
NOISE = RNG.normal(0, 1, len(STEPS))


def shown(losses: Iterable[float], *codes: float, given: LossLevel | None = None) -> LossLevels:
    levels = LossLevels(given)
    for code in codes:
        levels.see(LOSS_LEVEL, "", code)
    for value in losses:
        levels.see("loss", "", float(value))
    return levels


@pytest.mark.parametrize(
    ("losses", "signed"),
    [
        (np.sin(STEPS / 30) + 0.1 * NOISE, True),
        (NOISE, True),
        (0.3 + NOISE, True),
        (2.0 - STEPS / 500 + 0.1 * NOISE, False),
        (2.0 - STEPS / 500 + 0.5 * NOISE, False),
        (0.02 * NOISE + 2 * np.exp(-STEPS / 100) - 0.1, False),
        (np.where(STEPS == 5, -1.0, 1.0) + 0.1 * NOISE, False),
        (3.0 + 0.5 * NOISE, False),
    ],
    ids=["swings", "noise", "noise above zero", "crosses", "crosses with noise", "ends below", "one below", "positive"],
)
def test_no_level_is_used_for_a_loss_that_keeps_changing_its_sign(losses: np.ndarray, signed: bool) -> None:
    assert keeps_changing_sign(losses.tolist()) is signed
    assert shown(losses).reason is (NoLevel.SIGNED if signed else None)


def test_the_recorded_level_is_used_and_a_level_set_by_the_user_takes_precedence() -> None:
    positive = [1.0] * 10
    assert shown(positive, 2.0).reason is NoLevel.BOOTSTRAPPED
    assert shown(positive, 2.0, 0.0).has_level
    assert shown(NOISE, LossLevel(None, by_user=True).code).has_level
    assert shown(positive, 2.0, given=LossLevel(NoLevel.NAMED)).reason is NoLevel.NAMED
    assert shown(positive, 14.0, given=LossLevel(NoLevel.NAMED)).reason is NoLevel.POLICY


def test_a_rollback_forgets_losses_and_not_what_they_have_shown() -> None:
    levels = LossLevels()
    for place in ("", "track_1") * 3:
        levels.see("loss", place, 1.0)
    levels.after_rollback()
    levels.see("loss", "", 1.0)
    assert levels.reason is NoLevel.ADVERSARIAL


@pytest.mark.parametrize("word", LOSS_WORDS)
def test_each_word_of_the_user_survives_the_record(word: str) -> None:
    level = level_from_word(word)
    assert level.by_user
    assert level_from_code(level.code) == level


@pytest.mark.parametrize("code", [float("nan"), 9.0, 23.0, -1.0])
def test_codes_of_later_versions_say_nothing(code: float) -> None:
    assert level_from_code(code) is None
