"""What each type of finding is called within a sentence: "a loss spike", "3 loss spikes", "NaN"."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.catalog import TYPES


@dataclass(frozen=True, slots=True)
class Noun:
    """One kind of finding, in words."""

    one: str
    """With its article where it has one."""
    many: str = ""
    """Behind a number; empty for what is not counted, such as NaN."""

    def of(self, count: int) -> str:
        """So many of them."""
        return f"{count:,} {self.many}" if self.many and count > 1 else self.one


NOUNS = {each.kind: Noun(each.noun, each.plural) for each in TYPES if each.noun}
"""Every type of the catalog, in the words that it declares."""


def noun_of(kind: str, count: int = 1) -> str:
    """One of a kind, or several; a kind of a detector of the user's own in the words of its name."""
    known = NOUNS.get(kind)
    if known is not None:
        return known.of(count)
    words = kind.replace("_", " ")
    return f"{words} ({count:,} times)" if count > 1 else words
