"""What other people call our signals and findings: in metric names and in the words of a log.

In: the words of a metric's name, a line of a log. Out: the quantity or the type of finding of ours.
Guarantees: these tables are the only place that knows such names; a metric of held-out data, a limit and a setting are
none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_GPU = frozenset({"gpu", "gpus", "cuda", "device"})
_MEMORY = frozenset({"memory", "mem", "vram"})
_SHARE = frozenset({"percent", "percentage", "pct", "%", "share", "fraction", "ratio", "util", "utilization"})
_SHARE_OF_MEMORY = _SHARE | {"utilisation", "usage", "used"}
_SAMPLES = frozenset({"sample", "samples", "example", "examples", "image", "images", "img", "imgs", "seq", "seqs"})
_SECONDS = frozenset({"s", "sec", "secs", "second", "seconds"})
_STEPS = frozenset(
    {"step", "steps", "iteration", "iterations", "iter", "iters", "batch", "batches", "update", "updates"}
)
_COUNT = frozenset({"count", "counter", "number", "num", "n", "total", "of", "so", "far"})
_CODES = frozenset({"sdr", "sdrs"})
_PATTERNS = frozenset({"pattern", "patterns", "code", "codes"})
_PREFIXES = frozenset(
    {"perf", "performance", "monitor", "metrics", "stability", "system", "health", "stats", "avg"} | {"throughput"}
)


@dataclass(frozen=True, slots=True)
class MetricWords:
    """The words that a metric's name has to have to be one of our quantities."""

    quantity: str
    needed: tuple[frozenset[str], ...]
    """One word of each of these."""
    allowed: frozenset[str] = frozenset()
    """And any of these, which say no more."""
    by_place: bool = False
    """Whether what else the name says is a place, such as a layer's name; without it the name is another one."""

    def used(self, words: frozenset[str]) -> frozenset[str]:
        """The words of a name that say this; empty where the name is no such metric."""
        if not all(each & words for each in self.needed):
            return frozenset()
        used = words & (frozenset().union(*self.needed) | self.allowed | _PREFIXES)
        return used if self.by_place or used == words else frozenset()


METRICS = (
    MetricWords("sdr_unique_ratio", (_CODES, frozenset({"unique", "uniqueness"})), _PATTERNS | _SHARE, by_place=True),
    MetricWords("sdr_rows", (_CODES, frozenset({"rows", "total"})), _PATTERNS | _COUNT, by_place=True),
    MetricWords("sdr_temperature", (_CODES, frozenset({"temperature", "temp"})), by_place=True),
    MetricWords("sdr_bit_usage", (_CODES, frozenset({"bit", "bits"}), frozenset({"usage"})), by_place=True),
    MetricWords("sdr_active_bits", (_CODES, frozenset({"active"}), frozenset({"bits", "bit"})), by_place=True),
    MetricWords("rollback_count", (frozenset({"rollback", "rollbacks"}),), _COUNT),
    MetricWords("skipped_steps", (frozenset({"skipped"}), _STEPS), _COUNT),
    MetricWords("mfu", (frozenset({"mfu"}),), _SHARE),
    MetricWords("memory_share", (_GPU, _MEMORY, _SHARE_OF_MEMORY), frozenset({"0"})),
    MetricWords("memory_share", (_GPU, frozenset({"vram"}), _SHARE_OF_MEMORY), frozenset({"0"})),
    MetricWords("memory_share", (_MEMORY, frozenset({"share"})), _GPU),
    MetricWords("samples_per_second", (_SAMPLES, _SECONDS), frozenset({"per"})),
)
"""The first that fits a name counts. Losses, learning rates and norms are read by their own rules in `name_reading`."""
_BY_LAYER = re.compile(
    r"(?:[\w.-]+/)??(?:(?P<before>[a-z]+_[a-z]+)_(?:by|per)_layer|layers?_(?P<after>[a-z]+_[a-z]+?)s?)/(?P<place>.+)"
    r"|updates?/(?P<updated>[^/].*)/ratio",
    re.IGNORECASE,
)
LAYER_QUANTITIES = {
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "param_norm": "param_norm",
    "parameter_norm": "param_norm",
    "weight_norm": "param_norm",
    "update_ratio": "update_ratio",
    "activation_dead": "activation_dead",
    "attention_entropy": "attention_entropy",
}
"""What is measured by layer, in names such as ``grad_norm_by_layer/blocks.0.attn``."""


def layer_metric(name: str) -> tuple[str, str] | None:
    """The quantity and the layer of a name that has both."""
    found = _BY_LAYER.fullmatch(name) if "layer" in name.lower() or "ratio" in name else None
    if found and found["updated"]:
        return "update_ratio", found["updated"]
    quantity = LAYER_QUANTITIES.get((found["before"] or found["after"]).lower()) if found else None
    return None if found is None or quantity is None else (quantity, found["place"])


def metric_words(words: frozenset[str]) -> tuple[str, frozenset[str]] | None:
    """The quantity that a metric of these words is, and the words that say so."""
    for each in METRICS:
        used = each.used(words)
        if used:
            return each.quantity, used
    return None


_SEEN = r"[ _-]?(?:was |has been |is )?(?:detected|triggered|occurred|observed|found)\b"
_OF_GRADIENT = r"(?:(?:global |total )?grad(?:ient)?s?(?:[ _](?:norm|value)s?)?)"
_NO_VALUE = r"\b(?!\w*\s*[:=]?\s*(?:[-+]?[\d.]|nan|inf|true|false|on\b|off))"  # `loss nan grad_norm 0.5` are values
_NUMBER = r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?"
_IS_TOO_HIGH = r"(?:is |are |was )?too (?:high|large)\b"
_OF_NUMBERS = rf"(?:(?:train(?:ing)? |batch )?loss(?:es)?|{_OF_GRADIENT}|weights?|logits|activations?)"
SENTENCES = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (
            "sdr_collapse",
            rf"\b(?:SDRs?|sparse code)[ _-]?collapsed?(?:{_SEEN}|!|: *\d)|\bcollapsed SDRs?\b",
        ),
        ("sdr_low_diversity", r"\blow (?:SDR |code |pattern )?diversity\b.{0,20}\bunique\b"),
        (
            "sdr_bit_usage",
            r"\b(?:poor|low|uneven) (?:SDR )?bit[ _]usage\b|\bbit[ _]usage (?:is )?(?:too )?(?:low|poor)\b",
        ),
        ("sdr_temperature", r"\b(?<!gpu )(?<!device )temperature (?:is )?out of range\b"),
        ("rollback", rf"\broll(?:ed|ing)?[ _-]?back(?:{_SEEN}| to (?:the )?(?:batch|step|iter|checkpoint|epoch|last))"),
        (
            "nan_detected",
            rf"(?<![a-z])nan (?:in )?(?:the )?{_OF_NUMBERS}{_NO_VALUE}|{_OF_NUMBERS} (?:is|was|became|are) nan\b",
        ),
        ("nan_detected", rf"(?<![a-z])nans?{_SEEN}"),
        (
            "inf_detected",
            (
                rf"\binfinite {_OF_NUMBERS}\b|(?<![a-z])(?:inf|infinity) (?:in )?(?:the )?{_OF_NUMBERS}{_NO_VALUE}"
                rf"|{_OF_NUMBERS} (?:is|was|became|are) (?:inf|infinite)\b|(?<![a-z])inf{_SEEN}"
            ),
        ),
        (
            "gradient_explosion",
            (
                rf"\b(?:gradient explosion|exploding gradients?){_SEEN}|\b(?:high|large|huge) grad(?:ient)?s?[ _]norm\b"
                rf"|\bgrad(?:ient)?s?(?:[ _]norm)? (?:has |have )?(?:exploded|blown up|blew up|{_IS_TOO_HIGH})"
            ),
        ),
        ("gradient_vanishing", rf"\b(?:gradient vanishing|vanishing gradients?){_SEEN}"),
        (
            "loss_spike",
            (
                rf"\bloss spike{_SEEN}"
                rf"|\bloss\s*[:= ]\s*{_NUMBER}\s*(?:>|exceeds|is above)\s*{_NUMBER} ?(?:x|times)"
            ),
        ),
        (
            "divergence",
            (
                rf"\b(?:training |loss )?(?:divergence|divergent loss){_SEEN}|\bdivergence (?:warning|alert)\b"
                r"|\b(?:loss|training|model|run) (?:has |is |was )?(?:exploded|exploding|diverged|diverging|blown up)\b"
                r"|\bloss (?:explosion|blew up)\b"
            ),
        ),
        ("attention_collapse", rf"\battention (?:entropy )?collapse{_SEEN}"),
    )
)
"""What logs say in words, and which finding it is. A line may say several."""
_NOT_SAID = re.compile(
    r"\b(?:no|not|never|without|if|when|whether|detect_\w+)\b.{0,40}(?:nan|inf|collapse|rollback|spike|explo|diverg)"
    r"|(?:detected|triggered|occurred|collapse|rollback)\w*[\"']?\s*[:=]\s*(?:false|true|no|none|off|on|0\b(?!\.))"
    r"|^\s*(?:[#>]|if |elif |def |class |raise |return |print\(|log(?:ger|ging)?\.|assert )|f[\"']|print\(",
    re.IGNORECASE,
)
"""A setting, a denial, a line of source code."""
HINT = re.compile(
    r"collaps|roll|nan|inf|detected|triggered|diverg|explo|blown up|blew up|spike|diversity|bit.usage|temperature"
    r"|(?:high|large|huge) grad|too (?:high|large)|loss ?[:=] ?[\d.,e+-]+ ?(?:> ?\d|exceeds|is above)",
    re.IGNORECASE,
)
"""A line without any of these has no such sentence."""
_RATIO = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<percent>%)?\s*unique|unique\w*[ :=]+(?P<after>0?\.\d+)", re.IGNORECASE
)


def said_in(line: str) -> tuple[str, ...]:
    """The types of findings that a line speaks of, each once."""
    if not HINT.search(line) or _NOT_SAID.search(line):
        return ()
    return tuple(dict.fromkeys(kind for kind, words in SENTENCES if words.search(line)))


def unique_share_in(line: str) -> float | None:
    """The share of unique codes that a line speaks of: 0.183 of ``18.3 % unique``."""
    found = _RATIO.search(line)
    if found is None:
        return None
    share = float(found["after"] or found["number"])
    return share / 100 if found["percent"] or share > 1 else share
