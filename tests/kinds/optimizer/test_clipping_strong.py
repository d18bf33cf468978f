"""Clipping that leaves hardly anything of the gradients."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongClippingFacts, StrongClippingRule
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 200


def history(
    before: float = 0.7, after: float = 0.001, rate: float = 0.1, moved: float = 0.001, ratio: float = 1e-5
) -> RunHistory:
    norms = before * np.exp(np.random.default_rng(0).normal(0, 0.1, COUNT))
    curves = {
        "loss": falling(COUNT),
        "grad_norm": norms,
        "grad_norm_clipped": np.minimum(norms, after),
        "learning_rate": np.full(COUNT, rate),
        "update_norm": np.full(COUNT, moved),
        "update_ratio": np.full(COUNT, ratio),
    }
    return run_of(*(metric_of(name, curve, meaning=Meaning(name, is_known=True)) for name, curve in curves.items()))


def findings_of(run: RunHistory) -> list[Finding]:
    return StrongClippingRule().find(run_curves(run))


def test_clipping_by_a_factor_of_hundreds_under_sgd_is_found() -> None:
    (finding,) = findings_of(history())
    facts = finding.facts
    assert isinstance(facts, StrongClippingFacts)
    assert (facts.after, facts.share, facts.update_ratio) == (0.001, 1.0, 1e-5)
    assert facts.before == pytest.approx(0.7, rel=0.05)
    assert finding.severity is Severity.WARNING
    assert "in 100% of steps (norm 0.7" in finding.message


@pytest.mark.parametrize(
    "run",
    [
        history(after=0.1),
        history(before=0.0005),
        history(moved=0.1),
        history(ratio=1e-3),
    ],
    ids=["usual clipping", "nothing to clip", "updates of Adam", "large updates"],
)
def test_other_clipping_is_not_reported(run: RunHistory) -> None:
    assert findings_of(run) == []
