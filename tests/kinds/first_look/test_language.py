"""Language models whose targets are in their input."""

from __future__ import annotations

import pytest
from detectors.series import decaying, judged

from mlflow_stability.kinds.first_look.language import PaddingFacts, TargetsInInputFacts, TargetsInViewFacts
from mlflow_stability.vocabulary.result import Finding, Severity


def copying(steps: int, over: float = 40.0) -> list[float]:
    """The loss of a model that learns to copy."""
    return list(decaying(steps, low=0.01, high=3.0, over=over))


def copies(shares: list[float], losses: list[float]) -> list[Finding]:
    padded = [*shares, *[None] * (len(losses) - len(shares))]
    return judged("targets_in_input", targets_in_input=padded, loss=losses)  # type: ignore[arg-type]


def test_a_language_model_that_copies_its_input_is_found() -> None:
    (finding,) = copies([1.0] * 5, copying(400))
    assert finding.severity is Severity.WARNING
    assert finding.step < 200
    facts = finding.facts
    assert isinstance(facts, TargetsInInputFacts)
    assert facts.loss < 0.15
    assert facts.first_loss == 3.0


@pytest.mark.parametrize(
    ("shares", "losses"),
    [
        ([1.0] * 5, list(decaying(2000, low=0.5, high=3.0))),
        ([1.0] * 5, copying(3000, over=800.0)),
        ([1.0, 1.0, 0.9, 1.0, 1.0], copying(400)),
        ([0.05] * 5, copying(400)),
        ([1.0] * 3, copying(400)),
        ([], copying(400)),
    ],
    ids=["the loss stays", "it falls slowly, as of an autoencoder", "masked", "shifted", "few looks", "not compared"],
)
def test_other_language_models_are_not_reported(shares: list[float], losses: list[float]) -> None:
    assert copies(shares, losses) == []


def test_targets_that_attention_sees_are_found_and_those_of_a_causal_model_are_not() -> None:
    (finding,) = judged("targets_in_view", targets_in_view=[1.0, 1.0, 0.99, 1.0, 1.0])
    assert (finding.severity, finding.facts) == (Severity.WARNING, TargetsInViewFacts(1.0))
    assert "100% of the targets at step 4" in finding.message
    assert judged("targets_in_view", targets_in_view=[0.0] * 5) == []
    assert judged("targets_in_view", targets_in_view=[0.5] * 5) == [], "of a prefix that attention may see"


def test_a_loss_that_is_mostly_that_of_padding_is_found() -> None:
    (finding,) = judged("padding_in_loss", targets_padding=[0.8, 0.7, 0.75, 0.9, 0.8])
    assert (finding.severity, finding.facts) == (Severity.WARNING, PaddingFacts(0.8))
    assert finding.message == (
        "80% of the targets at step 4 are the padding_idx of the embedding, and the loss counts them: it is mostly "
        "that of padding."
    )
    assert judged("padding_in_loss", targets_padding=[0.8, 0.4] * 5) == []
