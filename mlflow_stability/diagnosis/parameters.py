"""Settings of runs: their parameters in one spelling, without redundant ones, and where runs differ.

The setting of a run is its parameters except seeds and what only names, numbers or dates it. `1e-3` and `0.001` are one
value, `True` and `true` are, and a parameter that is `None` is not set.

A parameter is redundant if another one of the same runs has its information, such as the recorded learning rate where
the script logs it too, or `amsgrad` where every Adam has the same. It is left out of all runs alike.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from mlflow_stability.vocabulary.result import Difference, RunCard


def _named(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|[._/ -])(?:{words})(?=$|[./ -])", re.IGNORECASE)


_WARM_UP = _named(r"warm_?up\w*|\w*_warm_?up\w*|lr_?scheduler|scheduler|schedule")
CHOSEN: tuple[re.Pattern[str], ...] = (
    _named(r"(?:base_?|max_?|peak_?|init(?:ial)?_?|\w+_)?(?:lr|learning[_ -]?rate)(?:_(?:max|peak|init))?"),
    _named(r"(?:\w+_)?batch(?:_?size)?|(?:\w+_)?accumulation(?:_steps)?|bs|micro_?batch(?:es|_size)?"),
    _named(r"(?:optimi[sz]er|optim)(?:_\d+)?$"),
    _named(r"momentum|beta_?[12]"),
    _WARM_UP,
    _named(r"(?:\w+_)?weight_?decay|wd"),
    _named(r"clip\w*|(?:\w+_)?clip(?:ping)?\w*|max_?(?:grad(?:ient)?_?)?norm"),
    _named(r"precision|autocast|amp|dtype|torch_dtype|bf16|fp16|tf32|loss_?scale|init_scale"),
    _named(
        r"(?:model|architecture|arch|width|depth|(?:n_?|num_?)?(?:layers?|heads?|blocks?)|(?:n_?)?(?:embd|embed)\w*"
        r"|(?:d_?|hidden_?)(?:model|dim|size|ff)|hidden|parameters_total|dropout)"
    ),
    _named(
        r"(?:data(?:set)?|seq(?:uence)?_?len(?:gth)?|context|vocab(?:_size)?|epochs?|max_?steps|total_?steps|steps)"
    ),
)
"""In order; a name belongs to the first that matches."""
SCHEDULE_OPTION = re.compile(r"^(?:optimizer_\d+\.)?scheduler\.", re.IGNORECASE)
_SEED = re.compile(r"(?:^|[._/ -]|(?<=[a-z]))(?:seed|random_?state)s?$", re.IGNORECASE)


@lru_cache(maxsize=4096)
def place_of(name: str) -> int:
    """Return where a parameter is listed; smaller is earlier."""
    if is_seed(name):
        return len(CHOSEN)
    if SCHEDULE_OPTION.search(name):
        return CHOSEN.index(_WARM_UP) if "warm" in name.lower() else len(CHOSEN) + 1
    return next((place for place, pattern in enumerate(CHOSEN) if pattern.search(name)), len(CHOSEN) + 1)


def is_chosen(name: str) -> bool:
    return place_of(name) <= len(CHOSEN)


def is_seed(name: str) -> bool:
    """Whether it is a seed: ``seed``, ``data.seed``, ``manual_seed``, ``random_state``."""
    return _SEED.search(name) is not None


def seeds_of(params: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in params.items() if is_seed(name)}


IDENTITY = re.compile(
    r"(?:^|[._/ -])(?:(?:run|exp|experiment|job|trial)[_-]?(?:name|id)"
    r"|(?:output|out|log|logging|checkpoint|ckpt|save|work|default_root|results?)[_-]?(?:dir|path|folder))$",
    re.I,
)
"""Parameters that name a run or its folders."""
MACHINE = frozenset({"system", "processors", "threads", "device_name"})
"""Parameters that describe the machine: they are listed as differences and are no part of the setting."""
COMMAND = "argv"  # the parameter that holds the command line
MLFLOW_TAGS = ("mlflow.source.name", "mlflow.source.git.commit", "mlflow.source.git.branch", "mlflow.user")
"""MLflow's own tags that may explain a difference."""
ONE_RUN = re.compile(
    r"(?:^|[._/ -])(?:(?:time|date)_?stamp|(?:start|launch|submit|created|creation)(?:ed)?_?(?:time|date|at)"
    r"|datetime|date_?time|u?uid|guid|hash|pid|process_?id|(?:master_?)?port"
    r"|(?:job|run|trial|task|slurm\w*|sweep|worker|array)_?(?:id|no|nr|num|number|index|idx|count)|run|trial|job)$",
    re.IGNORECASE,
)
"""Parameters that number or date a run: what goes with them goes with the time of day."""
DATE_OR_UUID = re.compile(
    r"\d{4}[-_/.]?\d{2}[-_/.]?\d{2}[T _-]+\d{2}[:h_.-]?\d{2}.*|.*[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}.*"
)
NOT_SET = frozenset({"none", "null", "nan", "n/a", ""})
MAX_EXACT_INTEGER = 2.0**53  # up to here a float holds every whole number

RATE = "learning_rate"  # the rate of the optimizer, which is always recorded
TOTAL, TRAINABLE = "parameters_total", "parameters_trainable"
OPTIMIZER_OPTIONS = frozenset(
    {
        *("adjust_lr_fn", "alpha", "amsgrad", "beta2_decay", "betas", "bias_correction", "capturable", "centered"),
        *("correct_bias", "dampening", "decoupled_weight_decay", "differentiable", "eps", "etas", "foreach", "fused"),
        *("history_size", "initial_accumulator_value", "lambd", "line_search_fn", "lr_decay", "max_eval", "max_iter"),
        *("maximize", "momentum_decay", "nesterov", "ns_coefficients", "ns_steps", "power", "relative_step", "rho"),
        *("scale_parameter", "step_sizes", "t0", "tolerance_change", "tolerance_grad", "warmup_init"),
    }
)
SCHEDULE_OPTIONS = frozenset({"base_momentum", "max_momentum", "min_lr"})
"""What OneCycleLR leaves in the groups of its optimizer."""
_OPTIMIZER_OPTION = re.compile(r"(?P<which>optimizer_\d+)?\.?(?P<name>\w+)")
_SCHEDULE_OPTION = re.compile(r"(?P<owner>(?:optimizer_\d+\.)?scheduler(?:_\d+)?)\.\w+")
_ALSO_A_RATE = re.compile(r"(?:^|[._/ -])(?:(?:base|max|peak|init|initial)[_-]?)?lr$|[._/ -]learning_?rate$", re.I)
_COMMAND_OPTION = re.compile(r"(?:--?|\+{1,2})?(?P<name>[A-Za-z][\w./-]*)(?:=(?P<value>.*))?", re.DOTALL)
_COMMAND_VALUE = re.compile(r"(?!-)|-[\d.]")

Params = Mapping[str, str]


def setting_of(card: RunCard) -> dict[str, str]:
    """Return what was set for this run, sorted by name."""
    setting = {
        name: spelled(value)
        for name, value in sorted(training_params(card).items())
        if not _names_one_run(name) and not DATE_OR_UUID.fullmatch(value.strip())
    }
    return {name: value for name, value in setting.items() if value}


def settings_of(cards: Sequence[RunCard]) -> list[dict[str, str]]:
    """Return the setting of each run, without redundant parameters."""
    return _without_redundant([setting_of(card) for card in cards])


def spelled(value: str) -> str:
    """Return the value in one spelling; empty for none."""
    text = value.strip()
    if text.lower() in NOT_SET:
        return ""
    if text.lower() in ("true", "false"):
        return text.capitalize()
    number = number_of(text)
    return text if number is None or abs(number) > MAX_EXACT_INTEGER else f"{number:.15g}"


def number_of(text: str) -> float | None:
    """Return the finite number that a text is; None for words."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@lru_cache(maxsize=4096)
def _names_one_run(name: str) -> bool:
    return is_seed(name) or ONE_RUN.search(name) is not None


def differences_of(cards: Sequence[RunCard]) -> tuple[Difference, ...]:
    """Return parameters that differ, those that people choose first; then tags, the fewest different values first."""
    machines = [{name: card.params[name] for name in MACHINE if name in card.params} for card in cards]
    params = _without_redundant([training_params(card) for card in cards])
    tags = [
        {
            name: value
            for name, value in card.tags.items()
            if name in MLFLOW_TAGS or not name.startswith(("mlflow.", "stability."))
        }
        for card in cards
    ]
    return (
        *_differing([{**machine, **own} for machine, own in zip(machines, params, strict=True)]),
        *_differing(tags, are_tags=True),
    )


def _differing(runs: Sequence[Params], *, are_tags: bool = False) -> list[Difference]:
    names = dict.fromkeys(name for run in runs for name in run)
    rows = [Difference(name, tuple(run.get(name) for run in runs), are_tags) for name in names]
    rows = [row for row in rows if len(set(row.values)) > 1]
    return sorted(rows, key=lambda row: (0 if are_tags else place_of(row.name), len(set(row.values)), row.name))


def training_params(card: RunCard) -> dict[str, str]:
    """Return the parameters that say what a run does; of its command line the words that repeat no other parameter."""
    params = {n: value for n, value in card.params.items() if not IDENTITY.search(n) and n not in MACHINE}
    if COMMAND in params:
        try:
            words = shlex.split(params[COMMAND])
        except ValueError:  # a quote that was not closed, or an apostrophe
            words = params[COMMAND].split()
        others = {name: value for name, value in card.params.items() if name != COMMAND}
        params[COMMAND] = " ".join(_own_words(words, others))
    return params


def _own_words(words: Sequence[str], params: Params) -> Iterator[str]:
    """Yield the words without options that name the run or its seed, or that repeat a parameter."""
    names = {_normalized(name) for name in params}
    numbers = {_fraction(value) for value in params.values()} - {None}
    place = 0
    while place < len(words):
        option_words = [words[place]]
        option = _COMMAND_OPTION.fullmatch(words[place])
        place += 1
        if option is not None:
            value = option["value"]
            may_have_value = value is None and option_words[0].startswith("-")
            if may_have_value and place < len(words) and _COMMAND_VALUE.match(words[place]):
                value = words[place]
                option_words.append(value)
                place += 1
            name = option["name"]
            if value is not None and (
                is_seed(name) or IDENTITY.search(name) or _normalized(name) in names or _fraction(value) in numbers
            ):
                continue
        yield from option_words


def _normalized(name: str) -> str:
    return name.lower().replace("-", "_")


def _fraction(text: str) -> float | None:
    """Return a number such as 0.003, which two parameters rarely share by chance; None for words and integers."""
    value = number_of(text)
    return None if value is None or value.is_integer() else value


def _without_redundant(runs: Sequence[Params]) -> list[dict[str, str]]:
    redundant = {*_redundant_rates(runs), *_redundant_options(runs)}
    counted = [run for run in runs if TRAINABLE in run]
    if counted and all(run[TRAINABLE] == run.get(TOTAL) for run in counted):
        redundant.add(TRAINABLE)
    return [{name: value for name, value in run.items() if name not in redundant} for run in runs]


def _redundant_rates(runs: Sequence[Params]) -> Iterator[str]:
    """Yield the recorded rate where the script logs the same in every run; else the names that repeat it in some."""
    recorded = [run for run in runs if RATE in run]
    names = dict.fromkeys(name for run in runs for name in run if _ALSO_A_RATE.search(name) and name != RATE)
    repeating = [
        name
        for name in sorted(names, key=len)
        if all(_is_same_number(run[name], run.get(RATE)) for run in runs if name in run)
    ]
    everywhere = [n for n in repeating if not _SCHEDULE_OPTION.fullmatch(n) and all(n in run for run in recorded)]
    if everywhere:
        yield RATE
        yield from (name for name in repeating if name != everywhere[0])
    elif len(recorded) == len(runs):
        yield from repeating


def _redundant_options(runs: Sequence[Params]) -> Iterator[str]:
    """Yield options of optimizers and schedules that have one value, and are there exactly where their class is."""
    for name in dict.fromkeys(name for run in runs for name in run):
        owner = _owner_of(name)
        if owner is None:
            continue
        values: dict[str | None, set[str | None]] = {}
        for run in runs:
            values.setdefault(run.get(owner), set()).add(run.get(name))
        different = set().union(*values.values()) - {None}
        if len(different) <= 1 and all(len(of_class) == 1 for of_class in values.values()):
            yield name


def _owner_of(name: str) -> str | None:
    """Return the parameter that holds the class of the optimizer or schedule that has this option."""
    schedule = _SCHEDULE_OPTION.fullmatch(name)
    if schedule is not None:
        return None if is_chosen(name) else schedule["owner"]
    option = _OPTIMIZER_OPTION.fullmatch(name)
    if option is not None and option["name"] in SCHEDULE_OPTIONS:
        return f"{option['which']}.scheduler" if option["which"] else "scheduler"
    return (option["which"] or "optimizer") if option is not None and option["name"] in OPTIMIZER_OPTIONS else None


def _is_same_number(first: str, second: str | None) -> bool:
    try:
        return second is not None and float(first) == float(second)
    except ValueError:
        return False
