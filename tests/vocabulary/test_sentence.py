from __future__ import annotations

import pytest

from mlflow_stability.vocabulary.sentence import capitalised, sentence


@pytest.mark.parametrize(
    ("phrase", "said"),
    [
        ("gradient norm: not logged", "Gradient norm: not logged"),
        ("a loss", "A loss"),
        ("the batch's labels", "The batch's labels"),
        ("loss, grad_norm", "Loss, grad_norm"),
        ("warm-up is missing", "Warm-up is missing"),
        ("why", "Why"),
    ],
)
def test_an_ordinary_word_gets_a_capital(phrase: str, said: str) -> None:
    assert capitalised(phrase) == said


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
