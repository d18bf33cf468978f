"""What findings know, with types: facts travel, sentences are made last."""

from __future__ import annotations

from mlflow_stability.vocabulary.facts.facts import Facts, OtherFacts, classes_of_facts, facts_from_json
from mlflow_stability.vocabulary.facts.limits import (
    SINCE,
    FollowedFacts,
    LastingFacts,
    LimitFacts,
    LossTrouble,
    RiseFacts,
    rises_beyond,
    times_beyond,
)
from mlflow_stability.vocabulary.facts.loss import LossEndFacts, LossRiseFacts, PeakFacts
from mlflow_stability.vocabulary.facts.text_enum import TextEnum

__all__ = [
    "SINCE",
    "Facts",
    "FollowedFacts",
    "LastingFacts",
    "LimitFacts",
    "LossEndFacts",
    "LossRiseFacts",
    "LossTrouble",
    "OtherFacts",
    "PeakFacts",
    "RiseFacts",
    "TextEnum",
    "classes_of_facts",
    "facts_from_json",
    "rises_beyond",
    "times_beyond",
]
