"""What kinds are called within a sentence: "a loss spike", "3 loss spikes"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_UNCOUNTED = {
    "nan_detected": "NaN",
    "inf_detected": "infinity",
    "overfitting": "overfitting",
    "oscillation": "oscillation",
    "gradient_vanishing": "vanishing gradients",
    "repeated_data": "repeated data",
    "step_skipped": "skipped steps",
    "update_ratio_high": "large updates",
    "update_ratio_low": "tiny updates",
    "out_of_memory": "a lack of memory",
    "crashed": "a crash",
    "killed": "a kill",
    "give_up": "giving up",
    "dead_units": "dead units",
    "attention_logit_growth": "growing attention scores",
    "sdr_collapse": "a collapse of sparse codes",
    "sdr_low_diversity": "sparse codes that become alike",
    "sdr_bit_usage": "unused bits of sparse codes",
    "sdr_temperature": "a temperature that runs away",
    "activation_nonfinite": "outputs that are not finite",
    "saturated_activation": "saturated activations",
    "gradient_imbalance": "uneven gradients",
    "weight_imbalance": "uneven weights",
}


def noun_of(kind: str, count: int = 1) -> str:
    """One of a kind, or several."""
    if kind in _UNCOUNTED:
        return _UNCOUNTED[kind]
    words = kind.replace("_", " ")
    return f"{count} {words}s" if count > 1 else f"an {words}" if words[0] in "aeiou" else f"a {words}"


def listed(kinds: Iterable[str]) -> str:
    """All of them: "2 loss spikes, a plateau and NaN"."""
    nouns = [noun_of(kind, count) for kind, count in Counter(kinds).items()]
    return nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} and {nouns[-1]}"
