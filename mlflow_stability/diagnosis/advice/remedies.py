"""Says what to change in a training, most useful first.

In: the episodes of a run, its outcome and the cause of it. Out: sentences, each once: what goes against the cause, then
what goes against the episode that decides the outcome, then against the worst and earliest others.

Leaves one remedy on each thing that several remedies are about: one on lowering the learning rate, one on clipping.

In: remedies, most useful first. Out: the same without those that say less of the same than another one. Guarantees:
what goes against the cause with a number of its own is kept before all others; where the learning rate is too high
nothing says to raise it, and where it is too low, or was ruled out as the cause, nothing says to lower it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.diagnosis.causes.learning_rate import OF_THE_RATE, rate_is_innocent, without_rate
from mlflow_stability.diagnosis.verdict import deciding_of
from mlflow_stability.vocabulary.result import Cause, Episode, Severity
from mlflow_stability.vocabulary.text import capitalised

TOPICS = (
    re.compile(r"^lower the learning rate\b"),
    re.compile(r"^(?:warm up the learning rate|lengthen the (?:learning-rate )?warm-up)\b"),
    re.compile(r"^clip gradients\b"),
    re.compile(r"^raise the learning rate\b"),
    re.compile(r"^(?:enable rollback|restart from .*\bcheckpoint\b)"),
    re.compile(
        r"^inspect (?:the loss and )?the batch"
        r"(?: at (?:this )?step|es of the skipped steps| and the loss of the first skipped step)\b"
    ),
    re.compile(r"^(?:open|inspect) the saved batch\b"),
    re.compile(r"^check (?:the|its|the learning-rate) schedule\b"),
    re.compile(r"^(?:if it trains in fp16: )?(?:train in bf16 instead|start with a loss scale)\b"),
    re.compile(r"^raise the temperature\b"),
    re.compile(r"^clip (?:the )?updates\b"),
    re.compile(r"^normalise queries and keys\b"),
    re.compile(r"^clip (?:or decay )?the weights of queries\b"),
    re.compile(r"^(?:add residual connections|normalise before each block)\b"),
    re.compile(r"^use activation checkpointing\b"),
    re.compile(r"^lower (?:adam's )?beta2\b"),
    re.compile(r"^look for (?:a detach, a no_grad or )?frozen parameters\b"),
    re.compile(r"^keep (?:the inputs of|what goes into) this operation\b"),
)
"""What is said in many ways."""
ALTERNATIVE = re.compile(r"^(?P<one>.+), or (?P<other>clip gradients .+)$")
"""Two remedies in one, of which the second stands by itself."""
_TARGET = re.compile(r"(?:\bfrom \S+|[a-z]) to (?:about )?\d")
"""A value to go to; ``2 to 5`` is a range."""


def one_of_each(remedies: Iterable[str], cause: str = "") -> tuple[str, ...]:
    """The remedies without repetitions, in their order."""
    known = causes().get(cause)
    worse = None if known is None else known.made_worse_by
    asked = [each for each in dict.fromkeys(remedies) if worse is None or not worse.search(each)]
    kept: list[str] = []
    for each in [part for remedy in asked for part in _parts(remedy, asked)]:
        topic = _topic(each)
        twin = next((at for at, one in enumerate(kept) if topic is not None and _topic(one) == topic), None)
        if twin is None:
            kept.append(each)
        elif _exactness(each) > _exactness(kept[twin]):
            kept[twin] = each
    return tuple(kept)


def _parts(remedy: str, asked: list[str]) -> tuple[str, ...]:
    """Both of two remedies in one where another remedy is about either of them."""
    both = ALTERNATIVE.match(remedy)
    if both is None:
        return (remedy,)
    parts = f"{both['one']}.", capitalised(both["other"])
    topics = {_topic(part) for part in parts}
    return parts if any(_topic(each) in topics for each in asked if each != remedy) else (remedy,)


def _topic(remedy: str) -> int | None:
    return next((at for at, topic in enumerate(TOPICS) if topic.search(remedy.lower())), None)


def _exactness(remedy: str) -> int:
    """2: names a value to go to; 1: says by how much; 0: says only what to do."""
    return 2 if _TARGET.search(remedy) else int(any(map(str.isdigit, remedy)))


def remedies_of(episodes: Sequence[Episode], cause: Cause | None, outcome: str) -> tuple[str, ...]:
    """What to change; of the cause and the episodes the remedies that fit the run, as they bear them."""
    serious = [each for each in episodes if each.severity >= Severity.WARNING]
    deciding = deciding_of(outcome, serious)
    ranked = sorted(serious, key=lambda each: (each is not deciding, -each.severity, each.attempt, each.start))
    against = cause.remedies if cause is not None else ()
    kept: dict[str, frozenset[str]] = {}
    others = tuple(remedy for each in ranked for remedy in each.remedies)
    if cause is not None and cause.name not in OF_THE_RATE and rate_is_innocent(cause.ruled_out):
        against, others = without_rate(against) or against, without_rate(others)
    every = (*against, *others)
    for remedy in one_of_each(every, "" if cause is None else cause.name):
        words = frozenset(re.findall(r"[\w.-]*\w", remedy.lower()))
        if not any(words <= said for said in kept.values()):
            kept[remedy] = words
    return tuple(kept)
