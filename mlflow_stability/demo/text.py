"""A text to learn: endless small sentences of a made-up grammar, the same on every machine."""

from __future__ import annotations

import random

_WHO = ("the optimizer", "a gradient", "the loss", "one layer", "the learning rate", "a batch", "the model")
_DOES = ("follows", "meets", "remembers", "clips", "doubles", "forgets", "watches")
_HOW = ("slowly", "at once", "again", "without noise", "in the end", "by chance", "twice")

ALPHABET = tuple(sorted(set("".join((*_WHO, *_DOES, *_HOW)) + " .,\n")))


def text(characters: int, seed: int = 0) -> str:
    """About so many characters of it."""
    generator = random.Random(seed)
    lines: list[str] = []
    written = 0
    while written < characters:
        line = f"{generator.choice(_WHO)} {generator.choice(_DOES)} {generator.choice(_WHO)}"
        if generator.random() < 0.5:
            line += f", {generator.choice(_HOW)}"
        lines.append(line + ".\n")
        written += len(lines[-1])
    return "".join(lines)


def encoded(characters: int, seed: int = 0) -> list[int]:
    """The same as numbers, each the place of a character in `ALPHABET`."""
    places = {character: place for place, character in enumerate(ALPHABET)}
    return [places[character] for character in text(characters, seed)]
