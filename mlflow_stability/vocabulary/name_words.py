"""The words that a metric's name is made of, and what each of them says.

In: a name as some script wrote it (``train/box_loss``, ``trainLoss``, ``lr-AdamW/pg1``). Out: its words, and the tables
of words by which `metric_names` tells losses from clocks. Promised: splitting never fails and never drops a letter or
a digit.
"""

from __future__ import annotations

import re

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
