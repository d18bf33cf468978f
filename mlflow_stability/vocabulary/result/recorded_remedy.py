"""Reads remedies of recorded runs: objects, and the sentences that earlier versions wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from mlflow_stability.vocabulary.result.action import Action
from mlflow_stability.vocabulary.result.remedy import Amount, Remedy
from mlflow_stability.vocabulary.result.usual_remedies import WITH_NUMBERS


def read_remedies(recorded: Iterable[str | Mapping[str, Any]]) -> tuple[Remedy, ...]:
    """The remedies that `Remedy.as_json` wrote; sentences and unknown actions become `Action.IN_WORDS`, unless a
    remedy of today has the same sentence.
    """
    return tuple(map(_read_remedy, recorded))


def _read_remedy(recorded: str | Mapping[str, Any]) -> Remedy:
    if isinstance(recorded, str):
        return _remedies_by_sentence().get(recorded) or Remedy(Action.IN_WORDS, text=recorded)
    action = Action.__members__.get(str(recorded["action"]).upper())
    if action is None:  # of a later version
        return Remedy(Action.IN_WORDS, text=str(recorded["sentence"]))
    step, baseline, alternative = (recorded.get(name) for name in ("step", "baseline", "alternative"))
    return Remedy(
        action,
        target=_amount(recorded.get("target")),
        factor=_amount(recorded.get("factor")),
        baseline=None if baseline is None else float(baseline),
        step=None if step is None else int(step),
        unit=str(recorded.get("unit", "step")),
        module=str(recorded.get("module", "")),
        path=str(recorded.get("path", "")),
        text=str(recorded.get("text", "")),
        conditional=bool(recorded.get("conditional", False)),
        alternative=None if alternative is None else _read_remedy(alternative),
    )


def _amount(recorded: Any) -> Amount | None:
    if isinstance(recorded, list | tuple):
        low, high = recorded
        return float(low), float(high)
    return None if recorded is None else float(recorded)


@cache
def _remedies_by_sentence() -> Mapping[str, Remedy]:
    return {str(remedy): remedy for remedy in (*map(Remedy, Action), *WITH_NUMBERS)}
