"""Recognise quantities in the names that scripts give their metrics.

Guarantees: every name gets a meaning; two metrics share quantity and place only if one is a duplicate of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, count

from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.text.foreign_names import layer_metric, metric_words, word_set
from mlflow_stability.vocabulary.text.recorded_keys import read_key

TRAIN = word_set("train training trn tr 训练 訓練 treino entrenamiento entraînement")  # words for training data
HELD_OUT = word_set(
    "val valid validation validating vld va eval evaluation ev dev heldout holdout test testing tst te "
    "验证 驗證 検証 测试 測試 validação validacao validación validacion teste"
)
"""Words for data that are not trained on."""
TESTS = word_set("test testing tst te 测试 測試 teste")
"""Words for test data: used only where there is no validation of the same loss."""
LOSSES = word_set("loss losses 损失 損失 손실 perda pérdida perdua pèrdua perdita perte verlust verlies")
LIKEST = (
    *("objective", "cost", "nll", "ce", "xent", "crossentropy", "bce", "bpb", "bpc", "bpd", "mse", "rmse", "mae"),
    "smoothl1",
    "l_",
)
LOSS_LIKE = frozenset(LIKEST)  # what is optimised in a run that logs nothing called a loss, most likely first
ERRORS = ("perplexity", "ppl", "error", "err")  # what falls with the loss, and replaces it where it is missing
NOT_THE_LOSS = word_set(
    "scale scaler scaling weight weights coef coeff coefs coefficient factor multiplier std stdev var variance zscore "
    "trend slope threshold limit ratio count num best min max minimum maximum lowest highest delta diff gap change "
    "improvement patience lr packet stop profit score reduction acc accuracy ppl perplexity"
)
"""A name with "loss" and one of these is not a loss: ``loss_scale``, ``best_val_loss``."""
TOTALS = word_set("total tot overall sum summed combined all full whole joint")
MEANS = word_set("mean avg average averaged running smooth smoothed ema global reduced")
_POLICY = word_set("pg policy actor pi")
MAIN_WORDS = ("lm", "main", "task", "model", "ntp", "ce", "nll", "objective")
"""Names of the main loss, most likely first, where several losses have no total."""
FINE, COARSE = word_set("step batch iter iteration minibatch update"), word_set("epoch epochs")
"""Words for the rate at which a quantity is logged: each step, each epoch."""
CLOCK = word_set(
    "time times runtime walltime wall elapsed remaining eta timestamp datetime date seconds second secs sec ms minutes "
    "hours duration fps ups latency"
)
IDENTITY = word_set(
    "pid ppid rank seed uuid flos flops tflops mfu mem memory vram rss gb mb mib gib gpu cpu bsz wpb percentage "
    "percent progress done"
)
COUNTER = word_set(
    "step steps iter iters it iteration iterations epoch epochs batch batches update updates sample samples token "
    "tokens example examples image images episode ep episodes timestep timesteps idx index id row size num n number "
    "count total global current max consumed seen processed input skipped of no i t dt avg world trained so far s"
)
"""A name of these words alone is a counter."""

_TERM = re.compile(r"(?:[a-z]+[/ _])?L_[A-Za-z]")
_CHUNK = re.compile(r"[^\W_]+|%")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_JOINED = re.compile("(训练|訓練|验证|驗證|検証|测试|測試|损失|損失)")  # words that are written without spaces
_GLUED = re.compile(r"(?i)(?P<before>[a-z]\w*?)(?P<end>loss|gradnorm|gnorm)|(?P<start>loss)(?P<after>\d+|[gd])")
_ADVERSARY = re.compile(r"[DG]_\w+|(?:cycle|idt)_\w+")
_KNOWN_WORDS = TRAIN | HELD_OUT | LOSSES | {"norm", "grad", "gradient", "lr", "learning", "rate", "scale", "time"}


def split_words(name: str) -> tuple[str, ...]:
    """Split a name into words: ``train/box_loss`` is train, box, loss. No letter or digit is dropped."""
    return tuple(word for chunk in _CHUNK.findall(name) for word in _parts(chunk))


def _parts(chunk: str) -> list[str]:
    """Split a chunk without separators at known words: ``trainLoss``, ``valloss``, but not ``AdamW``."""
    if not chunk.isascii() and len(joined := [part for part in _JOINED.split(chunk) if part]) > 1:
        return joined
    camel = _CAMEL.split(chunk)
    if len(camel) > 1 and any(part.lower() in _KNOWN_WORDS for part in camel):
        return [word for part in camel for word in _parts(part)]
    glued = _GLUED.fullmatch(chunk)
    if glued is None or len(chunk) > 40:
        return [chunk]
    return [part for part in glued.groups() if part]


_EXACT = {"trl": "loss", "tel": "val_loss", "tloss": "loss", "vloss": "val_loss"}  # the first two are llm.c's
_LIKELIHOODS = (
    word_set("cross entropy"),
    word_set("negative likelihood"),
    word_set("neg likelihood"),
)
_RATES = FINE | COARSE
_GRADIENT = word_set("grad grads gradient gradients g")
_NORM = word_set("norm norms norm2 l2norm l2 gnorm gradnorm")
_WEIGHTS = word_set("param params parameter parameters weight weights")
_WHOLE = word_set("global total")
_TOKENS = word_set("tok toks token tokens")
_UNITS = word_set("s ms sec secs second seconds time")
_TIME_WORDS = word_set("per elapsed avg average mean perf total")
_NOT_THE_RATE = word_set("scale decay mult multiplier factor ratio warmup wd min max initial final")


@dataclass(frozen=True, slots=True)
class NameReading:
    name: str
    quantity: str = ""  # empty where it is not a quantity of this package
    place: str = ""
    role: str = ""  # the word for held-out data: ``val``
    rate: int = 0  # -1: each step; 1: each epoch; 0: not in the name
    on_training: bool = False  # whether the name has a word for training data
    bookkeeping: bool = False
    stem: str = ""  # the name without its rate
    ours: bool = False  # whether it is a key of a recording, or names a quantity and a layer


@lru_cache(maxsize=16_384)
def read_name(name: str, losses: frozenset[str]) -> NameReading:
    """Read a name, taking the words in `losses` for a loss."""
    key = read_key(name)
    if key is not None:
        prefix, quantity, place = key
        if prefix != "stability":  # a further recording in the same run
            place = "/".join(filter(None, (prefix, place)))
        return NameReading(name, quantity, place, ours=True)
    layer = layer_metric(name)
    if layer is not None:
        return NameReading(name, *layer, ours=True)
    original_words = split_words(name)
    words = [word.lower() for word in original_words]
    if _TERM.match(name):  # `L_recon`, as papers write the terms of a loss
        words[words.index("l")] = "l_"
    role = next((word for word in words if word in HELD_OUT), "")
    held_out = "val_" if role else ""
    on_training = not role and not TRAIN.isdisjoint(words)
    rate = next((-1 if word in FINE else 1 for word in reversed(words) if word in _RATES), 0)
    stem = "_".join(word for word in words if word not in _RATES)

    def measured(quantity: str, used: frozenset[str]) -> NameReading:
        drop = used | TRAIN | HELD_OUT | _RATES
        place = "_".join(_canonical(word) for word in original_words if word.lower() not in drop)
        return NameReading(name, quantity, place, role, rate, on_training, stem=stem)

    if "".join(words) in _EXACT:
        return NameReading(name, _EXACT["".join(words)])
    if "max" in words and _is_gradient_norm(set(words)):
        return NameReading(name, bookkeeping=True)  # a limit
    other_quantity = _other_quantity(words)
    if other_quantity is not None:
        return measured(*other_quantity)
    if losses & set(words) and not (NOT_THE_LOSS | CLOCK) & set(words) - losses:
        return measured(f"{held_out}loss", losses | {"function"})
    if losses is LOSS_LIKE:
        likelihood = next((words_of_loss for words_of_loss in _LIKELIHOODS if words_of_loss <= set(words)), None)
        if likelihood is not None:
            return measured(f"{held_out}loss", likelihood | {"log"})
    return NameReading(name, rate=rate, stem=stem, bookkeeping=_is_bookkeeping(words))


def _other_quantity(words: list[str]) -> tuple[str, frozenset[str]] | None:
    """Return a quantity that is not a loss, and the words that name it."""
    present = frozenset(words)
    units = present & _UNITS
    if _is_gradient_norm(present):
        used = present & (_GRADIENT | _NORM | _WHOLE)
        return "grad_norm", used | {"2", "0"} if "2" in words[1:2] else used
    if present & _NORM and present & _WEIGHTS and not present & LOSSES:
        return "param_norm", present & (_NORM | _WEIGHTS | _WHOLE)
    if present & {"scale", "scaler"} and present & {"loss", "grad", "amp", "scaler"}:
        return "loss_scale", present & {"scale", "scaler", "loss", "grad", "amp"}
    if present & {"lr", "lrs"} or ("learning" in present and present & {"rate", "rates"}):
        used = present & {"lr", "lrs", "learning", "rate", "rates", "optimizer", "scheduler"}
        return None if present & (_NOT_THE_RATE | LOSSES) else ("learning_rate", used)
    if present in ({"wps"}, {"tps"}) or (present & _TOKENS and units):
        return "tokens_per_second", present & (_TOKENS | _UNITS | {"wps", "per"})
    if (
        present & FINE
        and (("per" in present and units) or "time" in present)
        and not present - FINE - _UNITS - _TIME_WORDS - TRAIN
    ):
        return "step_time", present & (FINE | _UNITS | _TIME_WORDS)
    if present & (HELD_OUT | LOSSES | {"system"}):  # MLflow counts samples of its system metrics, not steps
        return None
    return metric_words(present - TRAIN)


def _is_gradient_norm(present: frozenset[str] | set[str]) -> bool:
    has_both = present & _GRADIENT and present & _NORM
    return bool(has_both) or not present.isdisjoint({"gnorm", "gradnorm"}) or present - TRAIN - _WHOLE == {"norm"}


def _is_bookkeeping(words: list[str]) -> bool:
    present = set(words) - TRAIN - HELD_OUT
    return (
        bool(present & (CLOCK | IDENTITY))
        or words[:1] in (["time"], ["system"])
        or not present - COUNTER
        or (bool(present & NOT_THE_LOSS) and bool(present & LOSSES) and bool(present & {"best", "lowest", "patience"}))
    )


def _canonical(word: str) -> str:
    """Replace words for totals and means, so that the places of training and validation match."""
    lower = word.lower()
    return "total" if lower in TOTALS else "mean" if lower in MEANS else word


_LOSSES = ("loss", "val_loss")


@dataclass(frozen=True, slots=True)
class Meaning:
    quantity: str  # `loss`, `val_loss`, `grad_norm`, `learning_rate`, …; else the name as it was logged
    place: str = ""  # which of several: ``seg``, ``group_1``; a validation loss has that of its training loss
    is_known: bool = False  # whether `quantity` is a quantity of this package
    bookkeeping: bool = False  # whether it is a counter, a clock or an id, which says nothing about the training
    duplicate_of: str = ""  # the metric that has the same quantity at a finer rate: ``loss_step`` for ``loss_epoch``

    @property
    def signal(self) -> Signal:
        return Signal(self.quantity, self.place)


def metric_meanings(names: Iterable[str], *, all_known: bool = True) -> dict[str, Meaning]:
    """Return the meaning of each metric of one run; which loss is the whole one depends on the other names.

    ``all_known``: no other name will come, so that what is not called a loss may replace a missing one.
    """
    unique = list(dict.fromkeys(names))
    readings = [read_name(name, LOSSES) for name in unique]
    if any(not _POLICY.isdisjoint(word.lower() for word in split_words(name)) for name in unique):
        readings = [
            replace(reading, quantity="loss", place="v") if _is_vloss(reading) else reading for reading in readings
        ]
    if all_known:
        readings = _with_stand_ins(readings, LIKEST)
    if not any(reading.quantity in _LOSSES for reading in readings):
        readings = [reading if reading.quantity else read_name(reading.name, LOSS_LIKE) for reading in readings]
    if all_known and not any(reading.quantity in _LOSSES for reading in readings):
        readings = _with_adversaries(readings)
    if all_known:
        readings = _with_stand_ins(readings, ERRORS)
    if any("wins" in name.lower() for name in unique):  # then losses are games that were lost
        readings = [NameReading(reading.name) if "losses" in reading.name.lower() else reading for reading in readings]
    return _without_clashes(_with_whole_loss(readings))


def _with_adversaries(readings: list[NameReading]) -> list[NameReading]:
    """Take metrics for losses that are named after a generator and a discriminator: `D_A`, `G_A`, `cycle_A`, `idt_A`.

    So they are called in the logs of CycleGAN, pix2pix and what was made from them.
    """
    if {"D", "G"} <= {reading.name.partition("_")[0] for reading in readings if "_" in reading.name}:
        readings = [
            replace(reading, quantity="loss", place=reading.name) if _ADVERSARY.fullmatch(reading.name) else reading
            for reading in readings
        ]
    return readings


def _is_vloss(reading: NameReading) -> bool:
    """Whether a name is `v_loss`: the loss of a value function beside that of a policy, elsewhere of a validation."""
    return "".join(split_words(reading.name.lower())) == "vloss"


def _with_stand_ins(readings: list[NameReading], words: Sequence[str]) -> list[NameReading]:
    """Replace a missing loss or validation loss by the most similar metric: ``val_ppl`` beside ``train_loss``."""
    for quantity in _LOSSES:
        if any(reading.quantity == quantity for reading in readings):
            continue
        for word in words:
            stand_ins = {
                reading.name: stand_in
                for reading in readings
                if not (reading.quantity or reading.bookkeeping)
                and (stand_in := read_name(reading.name, frozenset({word}))).quantity == quantity
            }
            if stand_ins:
                readings = [stand_ins.get(reading.name, reading) for reading in readings]
                break
    return readings


def _with_whole_loss(readings: list[NameReading]) -> list[NameReading]:
    """Give the loss of the whole model the empty place; likewise the only metric of any other quantity."""
    places: dict[str, list[str]] = {}
    for reading in readings:
        if reading.quantity and not reading.ours:
            places.setdefault(reading.quantity, []).append(reading.place)
    whole = {quantity: _whole_place(places_of_quantity) for quantity, places_of_quantity in places.items()}
    training, validation = places.get("loss", []), places.get("val_loss", [])
    if validation and "" not in validation:
        if whole.get("loss") in validation:
            whole["val_loss"] = whole["loss"]
        elif whole["val_loss"] in training:
            whole["val_loss"] = None
    return [
        replace(reading, place="")
        if not reading.ours and reading.quantity in whole and reading.place == whole[reading.quantity]
        else reading
        for reading in readings
    ]


def _whole_place(places: list[str]) -> str | None:
    ranked = ["", *(places[:1] if len(set(places)) == 1 else ()), "total", "mean", *MAIN_WORDS]
    return next((place for place in ranked if place in places), None)


def _without_clashes(readings: list[NameReading]) -> dict[str, Meaning]:
    """Distinguish duplicates from different things of the same name."""
    bare = {(reading.quantity, reading.role) for reading in readings if reading.quantity and not reading.place}
    groups: dict[tuple[str, str], list[NameReading]] = {}
    for reading in readings:
        averaged = reading.place == "mean" and (reading.quantity, reading.role) in bare
        place = "" if averaged else reading.place
        key = (reading.quantity, place) if reading.quantity else ("", reading.stem or reading.name)
        groups.setdefault(key, []).append(reading)
    used_places = {key for key in groups if key[0]}
    meanings: dict[str, Meaning] = {}
    for (quantity, place), group in sorted(groups.items()):
        first, *others = sorted(group, key=lambda reading: (_coarseness(reading), _likeness(reading), reading.name))
        for reading in (first, *others):
            is_duplicate = (
                reading is not first and reading.role == first.role and _coarseness(reading) != _coarseness(first)
            )
            finer = first.name if is_duplicate else ""
            if not quantity:
                finer = "" if reading.bookkeeping or reading.rate == first.rate else finer
                meanings[reading.name] = Meaning(reading.name, bookkeeping=reading.bookkeeping, duplicate_of=finer)
                continue
            own_place = place
            if reading is not first and not is_duplicate:
                wishes = [reading.role, f"{reading.role}_{place}".strip("_"), reading.name]
                numbered = (f"{wishes[-1]}_{number}" for number in count(2))
                free = (wish for wish in chain(wishes, numbered) if wish and (quantity, wish) not in used_places)
                own_place = next(free)
                used_places.add((quantity, own_place))
            meanings[reading.name] = Meaning(quantity, own_place, is_known=True, duplicate_of=finer)
    return {reading.name: meanings[reading.name] for reading in readings}


def _coarseness(reading: NameReading) -> tuple[bool, int, bool, bool]:
    """Sort key of metrics of one thing, finest first; tests come after validations."""
    return reading.place == "mean", reading.rate, reading.on_training, reading.role in TESTS


def _likeness(reading: NameReading) -> int:
    """Rank of the word for a loss, most likely first, where several stand for one."""
    words = {word.lower() for word in split_words(reading.name)}
    return next((rank for rank, word in enumerate((*LIKEST, *ERRORS), start=1) if word in words), 0)
