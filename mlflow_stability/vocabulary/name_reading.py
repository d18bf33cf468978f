"""One metric's name, read on its own: which quantity, of what, measured on which data, how often.

In: a name. Out: what its words say; `metric_names` reads the names of a run together and settles what they leave open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mlflow_stability.vocabulary.name_words import (
    CLOCK,
    COARSE,
    COUNTER,
    FINE,
    HELD_OUT,
    IDENTITY,
    LOSS_LIKE,
    LOSSES,
    MEANS,
    NOT_THE_LOSS,
    TOTALS,
    TRAIN,
    words_of,
)

_OURS = re.compile(r"stability(?P<number>_\d+)?/(?P<quantity>[^/]+?)(?:_by_(?:layer|group)/(?P<place>.+))?")
_EXACT = {"trl": "loss", "tel": "val_loss", "tloss": "loss", "vloss": "val_loss"}  # the first two are llm.c's
_IN_SEVERAL_WORDS = (
    frozenset({"cross", "entropy"}),
    frozenset({"negative", "likelihood"}),
    frozenset({"neg", "likelihood"}),
)
_RATES = FINE | COARSE
_GRADIENT = frozenset({"grad", "grads", "gradient", "gradients", "g"})
_NORM = frozenset({"norm", "norms", "norm2", "l2norm", "l2", "gnorm", "gradnorm"})
_WEIGHTS = frozenset({"param", "params", "parameter", "parameters", "weight", "weights"})
_WHOLE = frozenset({"global", "total"})
_TOKENS = frozenset({"tok", "toks", "token", "tokens"})
_UNITS = frozenset({"s", "ms", "sec", "secs", "second", "seconds", "time"})
_OF_A_TIME = frozenset({"per", "elapsed", "avg", "average", "mean", "perf", "total"})
_ABOUT_A_RATE = frozenset(
    {"scale", "decay", "mult", "multiplier", "factor", "ratio", "warmup", "wd", "min", "max", "initial", "final"}
)


@dataclass(frozen=True, slots=True)
class NameReading:
    """One name, read on its own."""

    name: str
    quantity: str = ""
    """Empty where it is none of ours."""
    place: str = ""
    role: str = ""
    """The word that says that it was measured on held-out data: ``val``."""
    rate: int = 0
    """-1 for each step, 1 for each epoch, 0 where the name does not say."""
    on_training: bool = False
    """Whether the name says that it was measured on what is trained on."""
    bookkeeping: bool = False
    stem: str = ""
    """The name without its rate."""
    ours: bool = False
    """Whether it is a key of our own recorder, which needs no guessing."""


@lru_cache(maxsize=16_384)
def read_name(name: str, losses: frozenset[str]) -> NameReading:
    """What a name says, taking these words for losses."""
    ours = _OURS.fullmatch(name)
    if ours:
        place = "/".join(part for part in (f"stability{ours['number'] or ''}", ours["place"]) if part)
        return NameReading(name, ours["quantity"], place if ours["number"] else ours["place"] or "", ours=True)
    spelt = words_of(name)
    words = [word.lower() for word in spelt]
    role = next((word for word in words if word in HELD_OUT), "")
    held_out = "val_" if role else ""
    on_training = not role and not TRAIN.isdisjoint(words)
    rate = next((-1 if word in FINE else 1 for word in reversed(words) if word in _RATES), 0)
    stem = "_".join(word for word in words if word not in _RATES)

    def measured(quantity: str, used: frozenset[str]) -> NameReading:
        drop = used | TRAIN | HELD_OUT | _RATES
        place = "_".join(_canonical(word) for word in spelt if word.lower() not in drop)
        return NameReading(name, quantity, place, role, rate, on_training, stem=stem)

    if "".join(words) in _EXACT:
        return NameReading(name, _EXACT["".join(words)])
    if "max" in words and _is_gradient_norm(set(words)):
        return NameReading(name, bookkeeping=True)  # a limit
    found = _beside_the_loss(words)
    if found is not None:
        return measured(*found)
    if losses & set(words) and not (NOT_THE_LOSS | CLOCK) & set(words) - losses:
        return measured(f"{held_out}loss", losses | {"function"})
    if losses is LOSS_LIKE:
        likelihood = next((each for each in _IN_SEVERAL_WORDS if each <= set(words)), None)
        if likelihood is not None:
            return measured(f"{held_out}loss", likelihood | {"log"})
    return NameReading(name, rate=rate, stem=stem, bookkeeping=_is_bookkeeping(words))


def _beside_the_loss(words: list[str]) -> tuple[str, frozenset[str]] | None:
    """What else of ours is measured, and the words that say so."""
    there = frozenset(words)
    units = there & _UNITS
    if _is_gradient_norm(there):
        used = there & (_GRADIENT | _NORM | _WHOLE)
        return "grad_norm", used | {"2", "0"} if "2" in words[1:2] else used
    if there & _NORM and there & _WEIGHTS and not there & LOSSES:
        return "param_norm", there & (_NORM | _WEIGHTS | _WHOLE)
    if there & {"scale", "scaler"} and there & {"loss", "grad", "amp", "scaler"}:
        return "loss_scale", there & {"scale", "scaler", "loss", "grad", "amp"}
    if there & {"lr", "lrs"} or ("learning" in there and there & {"rate", "rates"}):
        used = there & {"lr", "lrs", "learning", "rate", "rates", "optimizer", "scheduler"}
        return None if there & (_ABOUT_A_RATE | LOSSES) else ("learning_rate", used)
    if there in ({"wps"}, {"tps"}) or (there & _TOKENS and units):
        return "tokens_per_second", there & (_TOKENS | _UNITS | {"wps", "per"})
    if (
        there & FINE
        and (("per" in there and units) or "time" in there)
        and not there - FINE - _UNITS - _OF_A_TIME - TRAIN
    ):
        return "step_time", there & (FINE | _UNITS | _OF_A_TIME)
    return None


def _is_gradient_norm(there: frozenset[str] | set[str]) -> bool:
    said = there & _GRADIENT and there & _NORM
    return bool(said) or not there.isdisjoint({"gnorm", "gradnorm"}) or there - TRAIN - _WHOLE == {"norm"}


def _is_bookkeeping(words: list[str]) -> bool:
    there = set(words) - TRAIN - HELD_OUT
    return (
        bool(there & (CLOCK | IDENTITY))
        or words[:1] in (["time"], ["system"])
        or not there - COUNTER
        or (bool(there & NOT_THE_LOSS) and bool(there & LOSSES) and bool(there & {"best", "lowest", "patience"}))
    )


def _canonical(word: str) -> str:
    """One word for all totals and one for all means, so that a validation's meets its training's."""
    lower = word.lower()
    return "total" if lower in TOTALS else "mean" if lower in MEANS else word
