"""What a metric is, from its name alone.

In: the names under which a script logged its metrics. Out: the quantity of ours that each stands for, if any.
Guarantees: every name gets a meaning, whatever it holds; two metrics share quantity and place only if one is a
duplicate of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.text.name_reading import (
    ERRORS,
    LIKEST,
    LOSS_LIKE,
    LOSSES,
    MAIN,
    TESTS,
    NameReading,
    read_name,
    words_of,
)

_LOSSES = ("loss", "val_loss")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What we take a metric for."""

    quantity: str
    """One of ours (`loss`, `val_loss`, `grad_norm`, `learning_rate`, …); else the name as it was logged."""
    place: str = ""
    """Which of several: ``seg``, ``Discriminator``, ``group_1``; a validation loss has that of its training loss."""
    known: bool = False
    """Whether `quantity` is one of ours."""
    bookkeeping: bool = False
    """Whether it is a counter, a clock or an identity, which says nothing about the training."""
    duplicate_of: str = ""
    """The metric that has the same quantity at a finer rate: ``loss_step`` for ``loss_epoch``."""

    @property
    def signal(self) -> Signal:
        """The signal that detectors know it by."""
        return Signal(self.quantity, self.place)


def meanings_of(names: Iterable[str], *, all_known: bool = True) -> dict[str, Meaning]:
    """What each metric of one run is; read together, for which loss is the whole one depends on the others.

    ``all_known``: no other name will come, so that what is not called a loss may stand for one that is missing.
    """
    unique = list(dict.fromkeys(names))
    readings = [read_name(name, LOSSES) for name in unique]
    if all_known:
        readings = _with_stand_ins(readings, LIKEST)
    if not any(each.quantity in _LOSSES for each in readings):
        readings = [each if each.quantity else read_name(each.name, LOSS_LIKE) for each in readings]
    if all_known:
        readings = _with_stand_ins(readings, ERRORS)
    if any("wins" in name.lower() for name in unique):  # then losses are games that were lost
        readings = [NameReading(each.name) if "losses" in each.name.lower() else each for each in readings]
    return _apart(_with_the_whole_first(readings))


def _with_stand_ins(readings: list[NameReading], words: Sequence[str]) -> list[NameReading]:
    """Where one of the two losses is missing, what is likest it: ``val_ppl`` beside ``train_loss``."""
    for quantity in _LOSSES:
        if any(each.quantity == quantity for each in readings):
            continue
        for word in words:
            found = {each.name: read_name(each.name, frozenset({word})) for each in readings if _may_stand_in(each)}
            likest = {name: each for name, each in found.items() if each.quantity == quantity}
            if likest:
                readings = [likest.get(each.name, each) for each in readings]
                break
    return readings


def _may_stand_in(reading: NameReading) -> bool:
    return not (reading.quantity or reading.bookkeeping)


def _with_the_whole_first(readings: list[NameReading]) -> list[NameReading]:
    """Give the loss of the whole model the empty place, and likewise what stands alone of any other quantity."""
    places: dict[str, list[str]] = {}
    for each in readings:
        if each.quantity and not each.ours:
            places.setdefault(each.quantity, []).append(each.place)
    whole = {quantity: _whole(found) for quantity, found in places.items()}
    trained, judged = places.get("loss", []), places.get("val_loss", [])
    if judged and "" not in judged:
        if whole.get("loss") in judged:
            whole["val_loss"] = whole["loss"]
        elif whole["val_loss"] in trained:
            whole["val_loss"] = None
    return [
        replace(each, place="")
        if not each.ours and each.quantity in whole and each.place == whole[each.quantity]
        else each
        for each in readings
    ]


def _whole(places: list[str]) -> str | None:
    ranked = ["", *(places[:1] if len(set(places)) == 1 else ()), "total", "mean", *MAIN]
    return next((place for place in ranked if place in places), None)


def _apart(readings: list[NameReading]) -> dict[str, Meaning]:
    """Tell duplicates from different things that happen to be called alike."""
    bare = {(each.quantity, each.role) for each in readings if each.quantity and not each.place}
    groups: dict[tuple[str, str], list[NameReading]] = {}
    for each in readings:
        averaged = each.place == "mean" and (each.quantity, each.role) in bare
        key = (each.quantity, "" if averaged else each.place) if each.quantity else ("", each.stem or each.name)
        groups.setdefault(key, []).append(each)
    taken = {key for key in groups if key[0]}
    meanings: dict[str, Meaning] = {}
    for (quantity, place), group in sorted(groups.items()):
        first, *others = sorted(group, key=lambda each: (_coarseness(each), _likeness(each), each.name))
        for each in (first, *others):
            again = each is not first and each.role == first.role and _coarseness(each) != _coarseness(first)
            finer = first.name if again else ""
            if not quantity:
                finer = "" if each.bookkeeping or each.rate == first.rate else finer
                meanings[each.name] = Meaning(each.name, bookkeeping=each.bookkeeping, duplicate_of=finer)
                continue
            where = place
            if each is not first and not again:
                where = _free(quantity, [each.role, f"{each.role}_{place}".strip("_"), each.name], taken)
            meanings[each.name] = Meaning(quantity, where, known=True, duplicate_of=finer)
    return {each.name: meanings[each.name] for each in readings}


def _coarseness(reading: NameReading) -> tuple[bool, int, bool, bool]:
    """What orders metrics of one thing, finest first; a test gives way to a validation."""
    return reading.place == "mean", reading.rate, reading.on_training, reading.role in TESTS


def _likeness(reading: NameReading) -> int:
    """How far from the likeliest word for a loss, where several stand for one."""
    words = {word.lower() for word in words_of(reading.name)}
    return next((rank for rank, word in enumerate((*LIKEST, *ERRORS), start=1) if word in words), 0)


def _free(quantity: str, wishes: list[str], taken: set[tuple[str, str]]) -> str:
    """The first place that no other metric has."""
    numbered = (f"{wishes[-1]}_{number}" for number in count(2))
    place = next(wish for wish in chain(wishes, numbered) if wish and (quantity, wish) not in taken)
    taken.add((quantity, place))
    return place
