"""What findings know, with types: facts travel, sentences are made last."""

from __future__ import annotations

from mlflow_stability.vocabulary.facts.autopilot import (
    CheckpointFailedFacts,
    CheckpointNotFiniteFacts,
    DataChangedFacts,
    EarlyStopFacts,
    GaveUp,
    GiveUpFacts,
    HeldRate,
    RollbackFacts,
    SkipNews,
    SkippedStepFacts,
    Smaller,
    SmallerStepsFacts,
)
from mlflow_stability.vocabulary.facts.batch import (
    BatchFacts,
    BrokenBatchFacts,
    Rerun,
    SpikeBatchFacts,
    first_and_broken,
)
from mlflow_stability.vocabulary.facts.divergence import (
    DivergenceFacts,
    LastingRiseFacts,
    SlowRiseFacts,
)
from mlflow_stability.vocabulary.facts.facts import Facts, OtherFacts, classes_of_facts, facts_from_json
from mlflow_stability.vocabulary.facts.limits import (
    SINCE,
    FollowedFacts,
    LimitFacts,
    LossTrouble,
    RiseFacts,
    rises_beyond,
    times_beyond,
)
from mlflow_stability.vocabulary.facts.log import LogLineFacts, LogSays
from mlflow_stability.vocabulary.facts.loss import NonFiniteFacts, SeenBy, SpikeFacts
from mlflow_stability.vocabulary.facts.nan_origin import NanOriginFacts, NanSource, TensorFacts, TokenFacts
from mlflow_stability.vocabulary.facts.process import EndFacts, RestartFacts, StallEnd, StallFacts
from mlflow_stability.vocabulary.facts.ranks import (
    RankDiedFacts,
    RankFacts,
    RankNonfiniteFacts,
    RankSlowStepFacts,
    RankSpikeFacts,
    StragglerFacts,
)
from mlflow_stability.vocabulary.facts.setup import (
    ConfigurationFacts,
    DiscardedBatchFacts,
    EvaluationModeFacts,
    LintFacts,
    NotMeasuredFacts,
    Setting,
    SettingName,
    UnclearedFacts,
    Unmeasured,
)
from mlflow_stability.vocabulary.facts.text_enum import TextEnum

__all__ = [
    "SINCE",
    "BatchFacts",
    "BrokenBatchFacts",
    "CheckpointFailedFacts",
    "CheckpointNotFiniteFacts",
    "ConfigurationFacts",
    "DataChangedFacts",
    "DiscardedBatchFacts",
    "DivergenceFacts",
    "EarlyStopFacts",
    "EndFacts",
    "EvaluationModeFacts",
    "Facts",
    "FollowedFacts",
    "GaveUp",
    "GiveUpFacts",
    "HeldRate",
    "LastingRiseFacts",
    "LimitFacts",
    "LintFacts",
    "LogLineFacts",
    "LogSays",
    "LossTrouble",
    "NanOriginFacts",
    "NanSource",
    "NonFiniteFacts",
    "NotMeasuredFacts",
    "OtherFacts",
    "RankDiedFacts",
    "RankFacts",
    "RankNonfiniteFacts",
    "RankSlowStepFacts",
    "RankSpikeFacts",
    "Rerun",
    "RestartFacts",
    "RiseFacts",
    "RollbackFacts",
    "SeenBy",
    "Setting",
    "SettingName",
    "SkipNews",
    "SkippedStepFacts",
    "SlowRiseFacts",
    "Smaller",
    "SmallerStepsFacts",
    "SpikeBatchFacts",
    "SpikeFacts",
    "StallEnd",
    "StallFacts",
    "StragglerFacts",
    "TensorFacts",
    "TextEnum",
    "TokenFacts",
    "UnclearedFacts",
    "Unmeasured",
    "classes_of_facts",
    "facts_from_json",
    "first_and_broken",
    "rises_beyond",
    "times_beyond",
]
