"""Recognise signals and findings by other words: of other tools, in metric names and lines of a log, and of users."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(words.split())


_GPU = word_set("gpu gpus cuda device")
_MEMORY = word_set("memory mem vram")
_SHARE = word_set("percent percentage pct % share fraction ratio util utilization")
_SHARE_OF_MEMORY = _SHARE | {"utilisation", "usage", "used"}
_SAMPLES = word_set("sample samples example examples image images img imgs seq seqs")
_SECONDS = word_set("s sec secs second seconds")
_STEPS = word_set("step steps iteration iterations iter iters batch batches update updates")
_COUNT = word_set("count counter number num n total of so far")
_CODES = word_set("sdr sdrs")
_PATTERNS = word_set("pattern patterns code codes")
_PREFIXES = word_set("perf performance monitor metrics stability system health stats avg throughput")


@dataclass(frozen=True, slots=True)
class MetricWords:
    quantity: str
    needed: tuple[frozenset[str], ...]  # the name has one word of each of these
    allowed: frozenset[str] = frozenset()  # words that the name may have besides
    by_place: bool = False  # whether all other words are a place, such as a layer's name; else there are none

    def used(self, words: frozenset[str]) -> frozenset[str]:
        """Return the words that identify the quantity; empty where the name is another metric."""
        if not all(alternatives & words for alternatives in self.needed):
            return frozenset()
        used = words & (frozenset().union(*self.needed) | self.allowed | _PREFIXES)
        return used if self.by_place or used == words else frozenset()


METRICS = (
    MetricWords("sdr_unique_ratio", (_CODES, word_set("unique uniqueness")), _PATTERNS | _SHARE, by_place=True),
    MetricWords("sdr_rows", (_CODES, word_set("rows total")), _PATTERNS | _COUNT, by_place=True),
    MetricWords("sdr_temperature", (_CODES, word_set("temperature temp")), by_place=True),
    MetricWords("sdr_bit_usage", (_CODES, word_set("bit bits"), word_set("usage")), by_place=True),
    MetricWords("sdr_active_bits", (_CODES, word_set("active"), word_set("bits bit")), by_place=True),
    MetricWords("rollback_count", (word_set("rollback rollbacks"),), _COUNT),
    MetricWords("skipped_steps", (word_set("skipped"), _STEPS), _COUNT),
    MetricWords("mfu", (word_set("mfu"),), _SHARE),
    MetricWords("memory_share", (_GPU, _MEMORY, _SHARE_OF_MEMORY), word_set("0")),
    MetricWords("memory_share", (_GPU, word_set("vram"), _SHARE_OF_MEMORY), word_set("0")),
    MetricWords("memory_share", (_MEMORY, word_set("share")), _GPU),
    MetricWords("samples_per_second", (_SAMPLES, _SECONDS), word_set("per")),
)
"""The first that fits a name counts. Losses, learning rates and norms have rules of their own in `metric_names`."""
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
"""Quantities by layer, in names such as ``grad_norm_by_layer/blocks.0.attn``."""


def layer_metric(name: str) -> tuple[str, str] | None:
    """Return quantity and layer of a name that has both."""
    match = _BY_LAYER.fullmatch(name) if "layer" in name.lower() or "ratio" in name else None
    if match is None:
        return None
    if match["updated"]:
        return "update_ratio", match["updated"]
    quantity = LAYER_QUANTITIES.get((match["before"] or match["after"]).lower())
    return None if quantity is None else (quantity, match["place"])


def metric_words(words: frozenset[str]) -> tuple[str, frozenset[str]] | None:
    """Return the quantity of a metric with these words, and the words that identify it."""
    for metric in METRICS:
        used = metric.used(words)
        if used:
            return metric.quantity, used
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
        (
            "rollback",
            rf"\broll(?:ed|ing)?[ _-]?back(?:{_SEEN}| to (?:the )?(?:batch|step|iter|checkpoint|epoch|last))",
        ),
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
"""Types of findings, and what logs write of them. A line may have several."""
_NEGATED = re.compile(
    r"\b(?:no|not|never|without|if|when|whether|detect_\w+)\b.{0,40}(?:nan|inf|collapse|rollback|spike|explo|diverg)"
    r"|(?:detected|triggered|occurred|collapse|rollback)\w*[\"']?\s*[:=]\s*(?:false|true|no|none|off|on|0\b(?!\.))"
    r"|^\s*(?:[#>]|if |elif |def |class |raise |return |print\(|log(?:ger|ging)?\.|assert )|f[\"']|print\(",
    re.IGNORECASE,
)
"""Settings, denials, lines of source code."""
MAY_NAME_FINDING = re.compile(
    r"collaps|roll|nan|inf|detected|triggered|diverg|explo|blown up|blew up|spike|diversity|bit.usage|temperature"
    r"|(?:high|large|huge) grad|too (?:high|large)|loss ?[:=] ?[\d.,e+-]+ ?(?:> ?\d|exceeds|is above)",
    re.IGNORECASE,
)
"""A line that does not match names no finding."""
_RATIO = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<percent>%)?\s*unique|unique\w*[ :=]+(?P<after>0?\.\d+)", re.IGNORECASE
)


def kinds_in_line(line: str) -> tuple[str, ...]:
    """Return the types of findings that a line names, each once."""
    if not MAY_NAME_FINDING.search(line) or _NEGATED.search(line):
        return ()
    return tuple(dict.fromkeys(kind for kind, words in SENTENCES if words.search(line)))


def unique_share_in(line: str) -> float | None:
    """Return the share of unique codes in a line: 0.183 of ``18.3 % unique``."""
    match = _RATIO.search(line)
    if match is None:
        return None
    share = float(match["after"] or match["number"])
    return share / 100 if match["percent"] or share > 1 else share


_SYNONYMS = {
    "nan_detected": "nan nans nan_loss nan_inf nan_gradient nonfinite",
    "inf_detected": "inf infinity",
    "loss_spike": "spike spikes",
    "divergence": "diverged diverging loss_explosion loss_divergence",
    "gradient_explosion": (
        "explosion exploding exploding_gradient exploding_gradients gradient_spike grad_spike grad_explosion"
    ),
    "gradient_vanishing": "vanishing vanishing_gradient vanishing_gradients grad_vanishing",
    "overfitting": "overfit poor_generalization poor_generalisation",
    "step_skipped": "skip skipped skipped_steps",
    "rollback": "rollbacks",
    "out_of_memory": "oom",
    "memory_pressure": "memory",
    "low_mfu": "mfu",
    "throughput_drop": "throughput",
    "sdr_collapse": "sdr",
    "learning_rate_out_of_range": "lr learning_rate",
    "learning_rate_jump": "learning_rate_changed",
    "crashed": "crash",
    "killed": "kill",
    "stall": "hang stalled",
    "dead_layer": "dead dead_layers",
    "plateau": "training_stall stagnation",
    "slow_progress": "slow_training slow_convergence",
}
KIND_SYNONYMS = {synonym: kind for kind, synonyms in _SYNONYMS.items() for synonym in synonyms.split()}
"""Kinds of findings by other names; no name of a kind is a key."""


def resolve_kind(typed: str, kinds: Collection[str]) -> str:
    """Return the kind that was meant, such as `nan_detected` for `NaN`; else what was typed, in lower case."""
    name = typed.strip().lower().replace("-", "_").replace(" ", "_")
    if name in kinds:
        return name
    kind = KIND_SYNONYMS.get(name, name)
    return kind if kind in kinds else name


def similar_kinds(name: str, kinds: Collection[str]) -> list[str]:
    """Return at most three kinds that may have been meant: by meaning, then by spelling, then by words."""
    words = set(name.split("_"))
    by_meaning = [kind for synonym, kind in KIND_SYNONYMS.items() if synonym in words and kind in kinds]
    by_word = [kind for kind in kinds if words & set(kind.split("_"))]
    by_spelling = get_close_matches(name, kinds, n=3, cutoff=0.5) or [kind for kind in kinds if name and name in kind]
    return list(dict.fromkeys([*by_meaning, *by_spelling, *by_word]))[:3]
