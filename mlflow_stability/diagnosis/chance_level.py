"""Knows what guessing costs: the cross-entropy of a uniform guess among so many classes is the logarithm of it."""

from __future__ import annotations

import math

FEW = range(2, 25)
USUAL = (100, 256, 1000, 10000, 30522, 32000, 50257, 50304, 65536, 100277, 128256, 151936)
"""Numbers of classes that occur: small ones; those of well-known data sets, of bytes, of vocabularies."""
TOLERANCE, OF_MANY = 0.012, 0.004
"""How far a loss may be from the cost of guessing among few and among many classes, as a share."""


def chance_of(loss: float) -> int:
    """The number of classes among which guessing costs this loss; 0 where it is not known for being such a level."""
    aways = [(abs(loss / math.log(classes) - 1), classes) for classes in (*FEW, *USUAL)]
    near = [(away, classes) for away, classes in aways if away < (TOLERANCE if classes in FEW else OF_MANY)]
    return min(near)[1] if near else 0
