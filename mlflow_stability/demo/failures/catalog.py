"""The simulations by name, without torch: where each failure is, and what it is in one line."""

from __future__ import annotations

from difflib import get_close_matches

from mlflow_stability.errors import SettingsError

SIMULATIONS: dict[str, tuple[str, str]] = {
    "learning-rate-too-high": ("learning_rates:TOO_HIGH", "AdamW trains a GPT with a learning rate of 1.0."),
    "learning-rate-too-low": ("learning_rates:TOO_LOW", "The learning rate is a ten-millionth of the usual one."),
    "learning-rate-jump": ("learning_rates:JUMP", "The learning rate is 30 times too high for 20 steps."),
    "no-warm-up": ("learning_rates:NO_WARM_UP", "A post-norm transformer starts with the full learning rate."),
    "bad-batch": ("data:BAD_BATCH", "One batch has random targets and 100 times the loss."),
    "nan-batch": ("data:NAN_BATCH", "The loss of one batch is NaN."),
    "bit-flip": ("weights:BIT_FLIP", "One bit of one weight flips."),
    "weight-decay": ("weights:WEIGHT_DECAY", "Weight decay is 10,000 times too strong for 20 steps."),
    "small-initialisation": ("weights:SMALL_INITIALISATION", "All initial weights are a hundredth of the usual ones."),
    "large-initialisation": ("weights:LARGE_INITIALISATION", "All initial weights are ten times the usual ones."),
    "missing-zero-grad": ("scripts:NO_ZERO_GRAD", "From a step on, zero_grad() is missing."),
    "fp16-overflow": ("scripts:HALF_OVERFLOW", "A loss scale of 2^30 makes every fp16 gradient infinite."),
    "attention-logit-growth": ("inside:ATTENTION_LOGITS", "Queries and keys learn 100 times too fast for 20 steps."),
    "sdr-collapse": ("inside:SDR_COLLAPSE", "The same bits of a sparse code win for every input."),
    "demo": ("padding:demo_failure", "A learning-rate jump, then a batch of padding: the training of the demo."),
}
"""Module and name in this package, and the sentence of the list."""


def known_simulation(name: str) -> str:
    """The name, if there is such a simulation; underscores and spaces are taken as hyphens."""
    asked = name.strip().lower().replace("_", "-").replace(" ", "-")
    if asked in SIMULATIONS:
        return asked
    near = get_close_matches(asked, SIMULATIONS, 1)
    hint = f" Did you mean {near[0]}?" if near else f" There are: {', '.join(SIMULATIONS)}."
    raise SettingsError(f"There is no simulation {name!r}.{hint}")
