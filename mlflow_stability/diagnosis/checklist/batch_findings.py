"""Says what was found of the batch of a step that broke, and of where its first bad number was born.

In: the surroundings of an episode. Out: for the questions of a checklist, sentences; None where nobody looked.
"""

from __future__ import annotations

from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.diagnosis.causes.nan_origin import (
    BROKEN_BATCH,
    near,
    origin_near,
    origin_of,
    overflowed,
    range_of,
)
from mlflow_stability.vocabulary.facts import BrokenBatchFacts, NanSource
from mlflow_stability.vocabulary.text import counted

MOST = 4
"""So many tensors of a batch are told of."""


def birth_said(around: EpisodeContext) -> str:
    """Where the first number that is not finite was born; empty where it was not looked for."""
    origin = origin_near(around)
    return "" if origin is None else origin_of(origin).statement


def overflow_said(around: EpisodeContext) -> tuple[str, bool] | None:
    """Whether numbers overflowed where the first bad one was born; None where that was not looked for."""
    origin = origin_near(around)
    if origin is None:
        return None
    facts = origin_of(origin)
    if facts.source is NanSource.INPUT:
        return "No: the batch itself was non-finite.", False
    if facts.source not in (NanSource.FORWARD, NanSource.BACKWARD):
        return None
    ranges = range_of(facts)
    given = f" Its inputs range {ranges}." if ranges else ""
    if overflowed(facts):
        return f"Yes, in {origin.place or 'the model'} at step {origin.step}.{given}", True
    return f"No: the operation is undefined for its inputs.{given}", False


def inputs_said(around: EpisodeContext) -> tuple[str, bool] | None:
    """What the batch held, and whether all of it was finite; None where nobody looked."""
    batch = next((each for each in around.said(BROKEN_BATCH) if near(around, each)), None)
    if batch is None:
        return None
    tensors = batch.facts.tensors if isinstance(batch.facts, BrokenBatchFacts) else ()
    told = [f"{counted(each.nan + each.inf, 'number')} of {each.name}" for each in tensors if not each.is_finite]
    if told:
        return f"Non-finite at step {batch.step}: {'; '.join(told[:MOST])}.", False
    ranges = [
        f"{each.name} from {shown(each.least)} to {shown(each.greatest)}"
        for each in tensors
        if each.least is not None and each.greatest is not None
    ]
    said = f"All finite at step {batch.step}"
    return f"{said}: {'; '.join(ranges[:MOST])}." if ranges else f"{said}.", True
