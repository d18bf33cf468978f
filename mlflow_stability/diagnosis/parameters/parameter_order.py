"""Puts the parameters that people choose before those that come with an optimizer or a machine.

In: the name of a parameter. Out: its place: the learning rate first, then batch, optimizer, warm-up and schedule,
weight decay, clipping, precision, the size of the model, the data, the seed; everything else behind.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mlflow_stability.diagnosis.parameters.seeds import is_seed

_START, _END = r"(?:^|[._/ -])", r"(?=$|[./ -])"


def _named(words: str) -> re.Pattern[str]:
    return re.compile(f"{_START}(?:{words}){_END}", re.IGNORECASE)


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
"""One after the other; a name is of the first that it fits."""
OF_A_SCHEDULE = re.compile(r"^(?:optimizer_\d+\.)?scheduler\.", re.IGNORECASE)
"""What a schedule was made with stands behind the schedule itself."""


@lru_cache(maxsize=4096)
def place_of(name: str) -> int:
    """Where it stands; smaller is earlier."""
    if is_seed(name):
        return len(CHOSEN)
    if OF_A_SCHEDULE.search(name):
        return CHOSEN.index(_WARM_UP) if "warm" in name.lower() else len(CHOSEN) + 1
    return next((at for at, form in enumerate(CHOSEN) if form.search(name)), len(CHOSEN) + 1)


def is_chosen(name: str) -> bool:
    """Whether it is one that people choose."""
    return place_of(name) <= len(CHOSEN)
