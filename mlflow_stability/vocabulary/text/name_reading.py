"""One metric's name, read on its own: which quantity, of what, measured on which data, how often.

In: a name. Out: what its words say; `metric_names` reads the names of a run together and settles what they leave open.

The words that a metric's name is made of, and what each of them says.

In: a name as some script wrote it (``train/box_loss``, ``trainLoss``, ``lr-AdamW/pg1``). Out: its words, and the tables
of words by which `metric_names` tells losses from clocks. Guarantees: splitting never fails and never drops a letter or
a digit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mlflow_stability.vocabulary.text.foreign_names import layer_metric, metric_words
from mlflow_stability.vocabulary.text.recorded_keys import read_key

TRAIN = frozenset({"train", "training", "trn", "tr", "训练", "訓練", "treino", "entrenamiento", "entraînement"})
"""Words that say: measured on what is trained on."""
HELD_OUT = frozenset(
    {"val", "valid", "validation", "validating", "vld", "va", "eval", "evaluation", "ev", "dev", "heldout", "holdout"}
    | {"test", "testing", "tst", "te", "验证", "驗證", "検証", "测试", "測試", "validação", "validacao", "validación"}
    | {"validacion", "teste"}
)
"""Words that say: measured on something else than what is trained on."""
TESTS = frozenset({"test", "testing", "tst", "te", "测试", "測試", "teste"})
"""Of those, the ones that give way where a validation of the same loss is there too."""
LOSSES = frozenset({"loss", "losses", "损失", "損失", "perda", "pérdida", "perte", "verlust"})
LIKEST = ("objective", "cost", "nll", "ce", "xent", "crossentropy", "bce", "bpb", "bpc", "bpd", "mse", "rmse", "mae")
LOSS_LIKE = frozenset(LIKEST)
"""What is optimised in a run that logs nothing called a loss, the likeliest first."""
ERRORS = ("perplexity", "ppl", "error", "err")
"""What falls with the loss, and stands for it where there is nothing else."""
NOT_THE_LOSS = frozenset(
    {"scale", "scaler", "scaling", "weight", "weights", "coef", "coeff", "coefs", "coefficient", "factor", "multiplier"}
    | {"std", "stdev", "var", "variance", "zscore", "trend", "slope", "threshold", "limit", "ratio", "count", "num"}
    | {"best", "min", "max", "minimum", "maximum", "lowest", "highest", "delta", "diff", "gap", "change", "improvement"}
    | {"patience", "lr", "packet", "stop", "profit", "score", "reduction", "acc", "accuracy", "ppl", "perplexity"}
)
"""Words that make of a loss's name something about the loss, or something else: ``loss_scale``, ``best_val_loss``."""
TOTALS = frozenset({"total", "tot", "overall", "sum", "summed", "combined", "all", "full", "whole", "joint"})
MEANS = frozenset({"mean", "avg", "average", "averaged", "running", "smooth", "smoothed", "ema", "global", "reduced"})
MAIN = ("lm", "main", "task", "model", "ntp", "ce", "nll", "objective")
"""Of several losses without a total, the first of these is the one that the model is trained for."""
FINE, COARSE = frozenset({"step", "batch", "iter", "iteration", "minibatch", "update"}), frozenset({"epoch", "epochs"})
"""At which rate the same quantity was logged."""
CLOCK = frozenset(
    {"time", "times", "runtime", "walltime", "wall", "elapsed", "remaining", "eta", "timestamp", "datetime", "date"}
    | {"seconds", "second", "secs", "sec", "ms", "minutes", "hours", "duration", "fps", "ups", "latency"}
)
IDENTITY = frozenset(
    {
        "pid",
        "ppid",
        "rank",
        "seed",
        "uuid",
        "flos",
        "flops",
        "tflops",
        "mfu",
        "mem",
        "memory",
        "vram",
        "rss",
        "gb",
        "mb",
    }
    | {"mib", "gib", "gpu", "cpu", "bsz", "wpb", "percentage", "percent", "progress", "done"}
)
COUNTER = frozenset(
    {"step", "steps", "iter", "iters", "it", "iteration", "iterations", "epoch", "epochs", "batch", "batches", "update"}
    | {"updates", "sample", "samples", "token", "tokens", "example", "examples", "image", "images", "episode", "ep"}
    | {"episodes", "timestep", "timesteps", "idx", "index", "id", "row", "size", "num", "n", "number", "count", "total"}
    | {
        "global",
        "current",
        "max",
        "consumed",
        "seen",
        "processed",
        "input",
        "skipped",
        "of",
        "no",
        "i",
        "t",
        "dt",
        "avg",
    }
    | {"world", "trained", "so", "far", "s"}
)
"""A name of these words alone counts something."""

_CHUNK = re.compile(r"[^\W_]+|%")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_JOINED = re.compile("(训练|訓練|验证|驗證|検証|测试|測試|损失|損失)")
"""Words of scripts that put no space between them."""
_GLUED = re.compile(r"(?i)(?P<before>[a-z]\w*?)(?P<end>loss|gradnorm|gnorm)|(?P<start>loss)(?P<after>\d+|[gd])")
_TELLING = TRAIN | HELD_OUT | LOSSES | {"norm", "grad", "gradient", "lr", "learning", "rate", "scale", "time"}


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, as they were spelt: ``train/box_loss`` is train, box, loss."""
    return tuple(word for chunk in _CHUNK.findall(name) for word in _parts(chunk))


def _parts(chunk: str) -> list[str]:
    """A chunk without separators, split where a word hides in it: ``trainLoss``, ``valloss``, but not ``AdamW``."""
    if not chunk.isascii() and len(joined := [each for each in _JOINED.split(chunk) if each]) > 1:
        return joined
    camel = _CAMEL.split(chunk)
    if len(camel) > 1 and any(part.lower() in _TELLING for part in camel):
        return [word for part in camel for word in _parts(part)]
    glued = _GLUED.fullmatch(chunk)
    if glued is None or len(chunk) > 40:
        return [chunk]
    return [part for part in glued.groups() if part]


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
    ours = read_key(name)
    if ours is not None:
        section, quantity, place = ours
        of_another = section != "stability"  # recording in the same run
        return NameReading(name, quantity, "/".join(filter(None, (section, place))) if of_another else place, ours=True)
    of_layer = layer_metric(name)
    if of_layer is not None:
        return NameReading(name, *of_layer, ours=True)
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
    if there & (HELD_OUT | LOSSES | {"system"}):  # MLflow counts samples of its system metrics, not steps
        return None
    return metric_words(there - TRAIN)


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
