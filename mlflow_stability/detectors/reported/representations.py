"""What a recording says of the representations of a training once it is over.

Nothing here looks at points. The words stand here, in the sections of every judgement, so that each is explained in the
same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.engine.finding_type import FindingType
from mlflow_stability.vocabulary.result.event import Severity


@dataclass(frozen=True, slots=True)
class RepresentationSummary(FindingType):
    """The representations of a module, summed up at the end of the training.

    What it sees: once for each module whose representations were measured: averages over all measurements, what they
    were at the end, how often it was warned of, and a verdict.

    Why it matters: a collapse that came and went, or that was there all along, is easily missed in single findings.

    What to try: look at the findings of the same module, which say when it began.

    When it is wrong: a training that ended before there were three measurements has hardly anything to sum up.

    Reference: Ahmad and Hawkins, Properties of sparse distributed representations (arXiv:1503.07469)
    """

    kind = "representation_summary"
    noun = "a summary of representations"
    plural = "summaries of representations"
    order = 1150
    severities = (Severity.INFO,)
    remedies = ("Look at the findings of the same module, which say when it began.",)


REPRESENTATION_KINDS: tuple[type[RepresentationSummary], ...] = (RepresentationSummary,)
"""All of them."""
