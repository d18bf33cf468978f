"""How results show themselves in a notebook: as the page that whoever renders pages has registered for their type.

Results are plain data and know no renderer; without one they show their `repr`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_pages: dict[str, Callable[[Any], str]] = {}


def register_page(type_name: str, page: Callable[[Any], str]) -> None:
    """Have results of this type shown as what `page` makes of them."""
    _pages[type_name] = page


class ShownAsPage:
    """A result that a notebook shows as a page."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """What Jupyter asks for; None: show the `repr`."""
        page = _pages.get(type(self).__name__)
        return None if page is None else page(self)
