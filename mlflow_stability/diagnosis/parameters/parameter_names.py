"""What names of parameters mean: which are seeds, and which people choose.

Chosen parameters come before those that come with an optimizer or a machine: the learning rate first, then batch,
optimizer, warm-up and schedule, weight decay, clipping, precision, the size of the model, the data, the seed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache


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
