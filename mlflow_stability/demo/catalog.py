"""The simulations by name, and the faults of the demo, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from mlflow_stability.errors import SettingsError

SIMULATIONS: dict[str, tuple[str, str]] = {
    "learning-rate-too-high": ("failures:TOO_HIGH", "AdamW trains a GPT with a learning rate of 1.0."),
    "learning-rate-too-low": ("failures:TOO_LOW", "The learning rate is a ten-millionth of the usual one."),
    "learning-rate-jump": ("failures:JUMP", "The learning rate is 30 times too high for 20 steps."),
    "no-warm-up": ("failures:NO_WARM_UP", "A post-norm transformer starts with the full learning rate."),
    "bad-batch": ("failures:BAD_BATCH", "One batch has random targets and 100 times the loss."),
    "nan-batch": ("failures:NAN_BATCH", "The loss of one batch is NaN."),
    "bit-flip": ("failures:BIT_FLIP", "One bit of one weight flips."),
    "weight-decay": ("failures:WEIGHT_DECAY", "Weight decay is 10,000 times too strong for 20 steps."),
    "small-initialisation": ("failures:SMALL_INITIALISATION", "All initial weights are a hundredth of the usual ones."),
    "large-initialisation": ("failures:LARGE_INITIALISATION", "All initial weights are ten times the usual ones."),
    "missing-zero-grad": ("failures:NO_ZERO_GRAD", "From a step on, zero_grad() is missing."),
    "fp16-overflow": ("failures:HALF_OVERFLOW", "A loss scale of 2^30 makes every fp16 gradient infinite."),
    "attention-logit-growth": ("failures:ATTENTION_LOGITS", "Queries and keys learn 100 times too fast for 20 steps."),
    "sdr-collapse": ("failures:SDR_COLLAPSE", "The same bits of a sparse code win for every input."),
    "demo": ("demo_failure:demo_failure", "A learning-rate jump, then a batch of padding: the training of the demo."),
}
"""By name: module and object in this package, and the sentence of the list."""


def known_simulation(name: str) -> str:
    """Return the name of a simulation; underscores and spaces are taken as hyphens."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    if plain in SIMULATIONS:
        return plain
    near = get_close_matches(plain, SIMULATIONS, 1)
    hint = f" Did you mean {near[0]}?" if near else f" There are: {', '.join(SIMULATIONS)}."
    raise SettingsError(f"There is no simulation {name!r}.{hint}")


MIN_STEPS = 400  # room before the faults for a good state, and after them to recover
LEARNING_RATE_FACTOR = 30
JUMP_STEPS = 20
# The jump begins 60 steps after a checkpoint of the autopilot, which is confirmed as good by then.
_CHECKPOINT_INTERVAL, _AFTER_CHECKPOINT = 100, 60


@dataclass(frozen=True, slots=True)
class DemoFaults:
    """The steps at which something goes wrong in the demo."""

    first: int
    last: int
    empty: int  # step whose batch is padding alone: its loss is 0 / 0

    def factor(self, step: int) -> int:
        return LEARNING_RATE_FACTOR if self.first <= step <= self.last else 1


def demo_faults(steps: int) -> DemoFaults:
    """Return the jump near the middle, and the empty batch after four fifths."""
    first = steps // 2 // _CHECKPOINT_INTERVAL * _CHECKPOINT_INTERVAL + _AFTER_CHECKPOINT
    return DemoFaults(first, first + JUMP_STEPS - 1, max(first + 2 * JUMP_STEPS, steps * 4 // 5))
