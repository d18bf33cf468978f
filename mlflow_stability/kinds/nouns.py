"""What each type of finding is called within a sentence: "a loss spike", "3 loss spikes", "NaN"."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.kinds.catalog import TYPES


@dataclass(frozen=True, slots=True)
class Noun:
    """One kind of finding, in words."""

    one: str
    """With its article where it has one."""
    many: str = ""
    """Behind a number; empty for what is not counted, such as NaN."""

    @property
    def has_article(self) -> bool:
        """Whether it is counted: "a plateau", but "NaN"."""
        return self.one.split(" ", 1)[0] in ("a", "an")

    @property
    def bare(self) -> str:
        """Without its article."""
        return self.one.split(" ", 1)[1] if self.has_article else self.one

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


def bare_noun_of(kind: str) -> str:
    """One of a kind, without an article: "loss spike"."""
    known = NOUNS.get(kind)
    return noun_of(kind) if known is None else known.bare


def definite_noun_of(kind: str) -> str:
    """One of a kind that is known already: "the loss spike"."""
    known = NOUNS.get(kind)
    return f"the {known.bare}" if known is not None and known.has_article else noun_of(kind)
