"""Knows for which numbers of classes the cost of guessing, the logarithm of the number, is a level worth a name."""

from __future__ import annotations

import math

FEW = range(2, 25)
"""Numbers of classes that lie so far apart that each may be meant."""
# The alphabets, data sets and vocabularies that people use. Not all numbers: the logarithm of some is near to any loss.
# 26-28 letters; 47 and 62 EMNIST; 65 tiny Shakespeare; 200 Tiny ImageNet; 365 Places. 101, 102 and 1024 lie so near to
# 100 and 1000 that a loss does not tell them apart.
MANY: tuple[int, ...] = (
    *(26, 27, 28, 32, 47, 62, 64, 65, 100, 128, 200, 256, 365, 512, 1000, 2048, 4096, 8192),
    *(10_000, 16_384, 21_841, 30_522, 32_000, 32_768, 50_257, 50_304, 65_536, 100_277, 128_256, 151_936),
)


def classes_of(loss: float, within: float) -> int:
    """The number of classes among which guessing gives this loss; 0 if there is none that people use."""
    away, classes = min((abs(loss / math.log(each) - 1), each) for each in (*FEW, *MANY))
    return classes if away <= within else 0


def stays_at_chance(before: float, now: float, within: float = 0.012, moved: float = 0.9) -> bool:
    """Whether a loss is what guessing costs and was hardly higher before: then nothing has been learnt meanwhile."""
    return now > 0 and now >= moved * before and classes_of(now, within) > 0
