"""What each kind of finding is called within a sentence: "a loss spike", "3 loss spikes", "NaN"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


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


NOUNS: dict[str, Noun] = {
    "activation_nonfinite": Noun("outputs that are not finite"),
    "adam_rms_high": Noun("a high AdamW RMS", "periods of a high AdamW RMS"),
    "attention_collapse": Noun("an attention collapse", "attention collapses"),
    "attention_logit_growth": Noun("growing attention scores"),
    "batch_discarded": Noun("a discarded batch", "discarded batches"),
    "broken_batch": Noun("a broken batch", "broken batches"),
    "checkpoint_failed": Noun("a checkpoint that failed", "checkpoints that failed"),
    "checkpoint_not_finite": Noun("a state that is not finite", "states that are not finite"),
    "configuration_changed": Noun("a change of the configuration", "changes of the configuration"),
    "crashed": Noun("a crash", "crashes"),
    "dead_layer": Noun("a dead layer", "dead layers"),
    "dead_units": Noun("dead units"),
    "divergence": Noun("a divergence", "divergences"),
    "give_up": Noun("the end of the rollbacks"),
    "gradient_explosion": Noun("a gradient explosion", "gradient explosions"),
    "gradient_imbalance": Noun("uneven gradients"),
    "gradient_vanishing": Noun("vanishing gradients"),
    "inf_detected": Noun("infinity"),
    "killed": Noun("a kill", "kills"),
    "layer_explosion": Noun("an explosion of one layer", "explosions of single layers"),
    "learning_rate_jump": Noun("a learning rate jump", "learning rate jumps"),
    "learning_rate_out_of_range": Noun("a learning rate out of range", "learning rates out of range"),
    "loss_scale_collapse": Noun("a collapse of the loss scale", "collapses of the loss scale"),
    "loss_spike": Noun("a loss spike", "loss spikes"),
    "low_mfu": Noun("a low MFU"),
    "memory_pressure": Noun("memory pressure"),
    "model_lint": Noun("a remark on the model", "remarks on the model"),
    "nan_detected": Noun("NaN"),
    "nan_origin": Noun("a first NaN that was traced", "first NaNs that were traced"),
    "not_measured": Noun("a part that is not measured", "parts that are not measured"),
    "oscillation": Noun("oscillation"),
    "out_of_memory": Noun("a lack of memory"),
    "overfitting": Noun("overfitting"),
    "plateau": Noun("a plateau", "plateaus"),
    "repeated_data": Noun("repeated data"),
    "representation_collapse": Noun("a collapse of representations", "collapses of representations"),
    "representation_summary": Noun("a summary of representations", "summaries of representations"),
    "rollback": Noun("a rollback", "rollbacks"),
    "saturated_activation": Noun("saturated activations"),
    "sdr_bit_usage": Noun("unused bits of sparse codes"),
    "sdr_collapse": Noun("a collapse of sparse codes", "collapses of sparse codes"),
    "sdr_low_diversity": Noun("sparse codes that become alike"),
    "sdr_temperature": Noun("a temperature that runs away", "temperatures that run away"),
    "slow_progress": Noun("slow progress"),
    "stall": Noun("a stall", "stalls"),
    "step_skipped": Noun("skipped steps"),
    "step_time_increase": Noun("longer steps"),
    "throughput_drop": Noun("a drop in throughput", "drops in throughput"),
    "update_ratio_high": Noun("large updates"),
    "update_ratio_low": Noun("tiny updates"),
    "weight_imbalance": Noun("uneven weights"),
    "weight_spike": Noun("a weight spike", "weight spikes"),
}
"""Every kind of the catalog."""


def noun_of(kind: str, count: int = 1) -> str:
    """One of a kind, or several; a kind of a detector of the user's own in the words of its name."""
    known = NOUNS.get(kind)
    if known is not None:
        return known.of(count)
    words = kind.replace("_", " ")
    return f"{words} ({count:,} times)" if count > 1 else words


def listed(kinds: Iterable[str]) -> str:
    """All of them: "2 loss spikes, a plateau and NaN"."""
    nouns = [noun_of(kind, count) for kind, count in Counter(kinds).items()]
    return nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} and {nouns[-1]}"
