"""Says what was found of the batch of a step that broke, and of where its first bad number was born.

In: the surroundings of an episode. Out: for the questions of a checklist, sentences; None where nobody looked.
"""

from __future__ import annotations

from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.diagnosis.causes.nan_origin import near, origin_near, overflowed, range_of, said_of, source_of
from mlflow_stability.vocabulary.result import Event
from mlflow_stability.vocabulary.text import counted

MOST = 4
"""So many tensors of a batch are told of."""


def birth_said(around: EpisodeContext) -> str:
    """Where the first number that is not finite was born; empty where it was not looked for."""
    origin = origin_near(around)
    return "" if origin is None else said_of(origin.message)


def overflow_said(around: EpisodeContext) -> tuple[str, bool] | None:
    """Whether numbers overflowed where the first bad one was born; None where that was not looked for."""
    origin = origin_near(around)
    if origin is not None and source_of(origin) == "input":
        return "No: the batch itself was non-finite.", False
    if origin is None or source_of(origin) not in ("forward", "backward"):
        return None
    ranges = range_of(origin)
    given = f" Its inputs range {ranges}." if ranges else ""
    if overflowed(origin):
        return f"Yes, in {origin.place or 'the model'} at step {origin.step}.{given}", True
    return f"No: the operation is undefined for its inputs.{given}", False


def inputs_said(around: EpisodeContext) -> tuple[str, bool] | None:
    """What the batch held, and whether all of it was finite; None where nobody looked."""
    batch = next((each for each in around.said("broken_batch") if near(around, each)), None)
    if batch is None:
        return None
    ill = {_name(key): int(number) for key, number in batch.evidence.items() if key.startswith("not_finite.")}
    if ill:
        told = [f"{counted(number, 'number')} of {name}" for name, number in ill.items()]
        return f"Non-finite at step {batch.step}: {'; '.join(told[:MOST])}.", False
    ranges = _ranges(batch)
    said = f"All finite at step {batch.step}"
    return f"{said}: {'; '.join(ranges[:MOST])}." if ranges else f"{said}.", True


def _ranges(batch: Event) -> list[str]:
    evidence = batch.evidence
    names = [_name(key) for key in evidence if key.startswith("least.")]
    known = [(name, evidence[f"least.{name}"], evidence.get(f"greatest.{name}")) for name in names]
    return [f"{name} from {shown(low)} to {shown(high)}" for name, low, high in known if high is not None]


def _name(key: str) -> str:
    return key.partition(".")[2]
