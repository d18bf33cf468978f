"""What the hooks need from whoever installs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Guard(Protocol):
    """Wraps the body of a hook so that an error of ours never reaches the training.

    The wrapped body returns None once its part is switched off, or when it failed.
    """

    def __call__(self, part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a body that belongs to a part, such as ``gradient norm``."""
        ...
