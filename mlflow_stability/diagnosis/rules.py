"""Every judgement of whole curves there is, in the order in which they look."""

from __future__ import annotations

from mlflow_stability.diagnosis.divergence_rule import DivergenceRule
from mlflow_stability.diagnosis.final_rise_rule import FinalRiseRule
from mlflow_stability.diagnosis.frozen_rule import FrozenRule
from mlflow_stability.diagnosis.gradient_rise_rule import GradientRiseRule
from mlflow_stability.diagnosis.nonfinite_rule import NonFiniteRule
from mlflow_stability.diagnosis.overfitting_rule import OverfittingRule
from mlflow_stability.diagnosis.plateau_rule import PlateauRule
from mlflow_stability.diagnosis.resume_rule import ResumeRule
from mlflow_stability.diagnosis.rule import Rule
from mlflow_stability.diagnosis.score_rule import ScoreRule
from mlflow_stability.diagnosis.skipped_end_rule import SkippedEndRule
from mlflow_stability.diagnosis.spike_rule import SpikeRule

RULES: tuple[type[Rule], ...] = (
    NonFiniteRule,
    SpikeRule,
    DivergenceRule,
    FinalRiseRule,
    ResumeRule,
    GradientRiseRule,
    FrozenRule,
    PlateauRule,
    ScoreRule,
    OverfittingRule,
    SkippedEndRule,
)

WHERE_JUDGED_LIVE: tuple[type[Rule], ...] = (
    DivergenceRule,
    FinalRiseRule,
    ResumeRule,
    GradientRiseRule,
    FrozenRule,
    PlateauRule,
    ScoreRule,
    OverfittingRule,
    SkippedEndRule,
)
"""What is still asked where detectors watched the training: what only the whole curve shows."""

OF_VALIDATIONS: tuple[type[Rule], ...] = (NonFiniteRule, SpikeRule)
"""And what is asked of validation losses there, which the script logs itself and no detector saw."""
