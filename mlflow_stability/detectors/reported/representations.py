"""The summary of representations that a recording reports at its end.

It is reported, not detected, and documented here in the same sections as every detector.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.engine.finding_type import FindingType
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Severity


@dataclass(frozen=True, slots=True)
class RepresentationSummary(FindingType):
    """The representations of a module, summarised at the end of the training.

    What it sees: once for each measured module: means over all measurements, the last values, the number of warnings,
    and a verdict.

    Why it matters: a collapse that came and went, or that was there from the start, is easily missed in single
    findings.

    What to try: read the findings of the same module, which say when it started.

    When it is wrong: a training that ended before there were three measurements has too little to summarise.

    Reference: Ahmad and Hawkins, Properties of sparse distributed representations (arXiv:1503.07469)
    """

    kind = "representation_summary"
    noun = "a summary of representations"
    plural = "summaries of representations"
    order = 1150
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.READ_FINDINGS_OF_MODULE),)
