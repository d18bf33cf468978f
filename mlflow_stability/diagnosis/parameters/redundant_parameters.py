"""Finds the parameters that say nothing that another parameter of the same runs does not say.

In: the parameters of several runs. Out: names to leave out in all of these runs alike, so that none has a gap where
another one has a value. What comes with an optimizer or a schedule, such as ``amsgrad``, is told by its class as long
as nobody set it: then it has one value wherever that class has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from mlflow_stability.diagnosis.parameters.parameter_order import is_chosen

RATE = "learning_rate"
"""The rate of the optimizer, which is recorded whether the script tells it or not."""
TOTAL, TRAINABLE = "parameters_total", "parameters_trainable"
OPTIONS = frozenset(
    {
        *("adjust_lr_fn", "alpha", "amsgrad", "beta2_decay", "betas", "bias_correction", "capturable", "centered"),
        *("correct_bias", "dampening", "decoupled_weight_decay", "differentiable", "eps", "etas", "foreach", "fused"),
        *("history_size", "initial_accumulator_value", "lambd", "line_search_fn", "lr_decay", "max_eval", "max_iter"),
        *("maximize", "momentum_decay", "nesterov", "ns_coefficients", "ns_steps", "power", "relative_step", "rho"),
        *("scale_parameter", "step_sizes", "t0", "tolerance_change", "tolerance_grad", "warmup_init"),
    }
)
"""What optimizers take beside the numbers that people choose."""
OF_A_SCHEDULE = frozenset({"base_momentum", "max_momentum", "min_lr"})
"""What OneCycleLR leaves in the groups of its optimizer."""
_OPTIMIZER = re.compile(r"(?P<which>optimizer_\d+)?\.?(?P<name>\w+)")
_SCHEDULE = re.compile(r"(?P<owner>(?:optimizer_\d+\.)?scheduler(?:_\d+)?)\.\w+")
_ALSO_A_RATE = re.compile(r"(?:^|[._/ -])(?:(?:base|max|peak|init|initial)[_-]?)?lr$|[._/ -]learning_?rate$", re.I)

Params = Mapping[str, str]


def told_otherwise(runs: Sequence[Params]) -> frozenset[str]:
    """The names to leave out of all these runs."""
    return frozenset((*_rates(runs), *_counts(runs), *_options(runs)))


def _rates(runs: Sequence[Params]) -> Iterator[str]:
    """The recorded rate where the script tells the same number in every run; else the names that repeat it in some."""
    recorded = [run for run in runs if RATE in run]
    names = dict.fromkeys(name for run in runs for name in run if _ALSO_A_RATE.search(name) and name != RATE)
    repeating = [
        name for name in sorted(names, key=len) if all(_same(run[name], run.get(RATE)) for run in runs if name in run)
    ]
    told = [name for name in repeating if not _SCHEDULE.fullmatch(name) and all(name in run for run in recorded)]
    if told:
        yield RATE
        yield from (name for name in repeating if name != told[0])
    elif len(recorded) == len(runs):
        yield from repeating


def _counts(runs: Sequence[Params]) -> Iterator[str]:
    """How many parameters are trained, where that is all of them everywhere."""
    known = [run for run in runs if TRAINABLE in run]
    if known and all(run[TRAINABLE] == run.get(TOTAL) for run in known):
        yield TRAINABLE


def _options(runs: Sequence[Params]) -> Iterator[str]:
    """What an optimizer or a schedule has, where it has one value and is there exactly where its class has it."""
    for name in dict.fromkeys(name for run in runs for name in run):
        owner = _owner(name)
        if owner is None:
            continue
        values: dict[str | None, set[str | None]] = {}
        for run in runs:
            values.setdefault(run.get(owner), set()).add(run.get(name))
        several = len({value for each in values.values() for value in each} - {None}) > 1
        if not several and all(len(each) == 1 for each in values.values()):
            yield name


def _owner(name: str) -> str | None:
    """The parameter that holds the class of what has this option."""
    schedule = _SCHEDULE.fullmatch(name)
    if schedule is not None:
        return None if is_chosen(name) else schedule["owner"]
    option = _OPTIMIZER.fullmatch(name)
    if option is not None and option["name"] in OF_A_SCHEDULE:
        return f"{option['which']}.scheduler" if option["which"] else "scheduler"
    return (option["which"] or "optimizer") if option is not None and option["name"] in OPTIONS else None


def _same(one: str, other: str | None) -> bool:
    """Whether they are the same number."""
    try:
        return other is not None and float(one) == float(other)
    except ValueError:
        return False
