"""Tells which parameters are seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SEED = re.compile(r"(?:^|[._/ -]|(?<=[a-z]))(?:seed|random_?state)s?$", re.IGNORECASE)


def is_seed(name: str) -> bool:
    """Whether a parameter of this name is a seed: ``seed``, ``data.seed``, ``manual_seed``, ``random_state``."""
    return _SEED.search(name) is not None


def seeds_of(params: Mapping[str, str]) -> dict[str, str]:
    """The seeds among these parameters."""
    return {name: value for name, value in params.items() if is_seed(name)}
