from __future__ import annotations

import pytest

from mlflow_stability.vocabulary.text.phrases import above, capitalised, changed, counted, risen, sentence


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 metrics"), (1, "1 metric"), (2, "2 metrics"), (12_000, "12,000 metrics")]
)
def test_one_thing_is_no_plural(count: int, expected: str) -> None:
    assert counted(count, "metric") == expected


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("gradient norm: not logged", "Gradient norm: not logged"),
        ("a loss", "A loss"),
        ("the batch's labels", "The batch's labels"),
        ("loss, grad_norm", "Loss, grad_norm"),
        ("warm-up is missing", "Warm-up is missing"),
        ("why", "Why"),
    ],
)
def test_an_ordinary_word_gets_a_capital(phrase: str, expected: str) -> None:
    assert capitalised(phrase) == expected


@pytest.mark.parametrize(
    "phrase",
    [
        "adam_rms, loss",
        "https://arxiv.org/abs/2304.13013",
        "sdr_rows is 3",
        "train/loss fell",
        "stability.learning_rate above 0.1",
        "model.layers rose",
        "bf16 instead of fp16",
        "lr > 0.01",
        "torch.amp is on",
        "nGPU is 3",
        "`loss` fell",
        "0.5 is too much",
        "x=3 was set",
        "",
        "NaN at step 3",
    ],
)
def test_what_a_program_calls_something_is_left_as_it_is(phrase: str) -> None:
    assert capitalised(phrase) == phrase


def test_a_sentence_ends_once() -> None:
    assert sentence("no loss was logged") == "No loss was logged."
    assert sentence("Is it running?") == "Is it running?"


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.35, ("up 35% from 2.1", "35% above 2.1", "+35% from start to end")),
        (9.99, ("up 999% from 2.1", "999% above 2.1", "+999% from start to end")),
        (45.0, ("46 times 2.1", "46 times 2.1", "46 times the start at the end")),
        (4.5e20, ("4.5e+20 times 2.1", "4.5e+20 times 2.1", "4.5e+20 times the start at the end")),
    ],
)
def test_a_rise_is_given_in_percent_and_a_very_large_one_as_a_multiple(
    share: float, words: tuple[str, str, str]
) -> None:
    assert (risen(share, "2.1"), above(share, "2.1"), changed(share)) == words


def test_a_fall_is_given_in_percent() -> None:
    assert changed(-0.61) == "-61% from start to end"


def test_what_began_below_zero_is_no_multiple_of_its_start() -> None:
    assert changed(12.0, positive=False) == "+1200% from start to end"
