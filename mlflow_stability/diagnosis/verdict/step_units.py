"""Calls the steps of a diagnosis what its log calls them: ``epoch 7`` where a log counts nothing but epochs.

In: a diagnosis in steps, and the log's word. Out: the same with that word in its sentences. Guarantees: numbers stay as
they are; a diagnosis of a log that counts steps is unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from mlflow_stability.vocabulary.result import Cause, Diagnosis, Remedy

STEP = "step"
_BEFORE = re.compile(r"\b([Ss])tep(s?)(?= \d)")
_BEHIND = re.compile(r"(?<=\d )step(s?)\b")


def in_words_of_the_log(diagnosis: Diagnosis, unit: str) -> Diagnosis:
    """The diagnosis whose sentences say what the log's reader would."""
    if unit == STEP:
        return diagnosis

    def said(text: str) -> str:
        text = _BEFORE.sub(lambda found: (unit.capitalize() if found[1] == "S" else unit) + found[2], text)
        return _BEHIND.sub(lambda found: unit + found[1], text)

    def in_unit(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
        return tuple(replace(remedy, unit=unit) for remedy in remedies)

    def why(cause: Cause | None) -> Cause | None:
        if cause is None:
            return None
        evidence, ruled_out, not_checked = (
            tuple(map(said, each)) for each in (cause.evidence, cause.ruled_out, cause.not_checked)
        )
        return replace(
            cause,
            statement=said(cause.statement),
            evidence=evidence,
            ruled_out=ruled_out,
            not_checked=not_checked,
            remedies=in_unit(cause.remedies),
        )

    episodes = tuple(
        replace(
            each,
            message=said(each.message),
            remedies=in_unit(each.remedies),
            cause=why(each.cause),
            unit=unit,
        )
        for each in diagnosis.episodes
    )
    return replace(
        diagnosis,
        verdict=said(diagnosis.verdict),
        episodes=episodes,
        cause=why(diagnosis.cause),
        remedies=in_unit(diagnosis.remedies),
        cannot_tell=tuple(map(said, diagnosis.cannot_tell)),
        curves=tuple(replace(each, unit=unit) for each in diagnosis.curves),
        unit=unit,
    )
