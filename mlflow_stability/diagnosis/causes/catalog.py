"""Every cause that can be named: what it means, what speaks for it, what goes against it, when it is wrong.

In: the name of a cause. Out: what is to be said of it. Promised: a cause that is not written down here is not named.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.gradients.gradient_vanishing import GradientVanishing
from mlflow_stability.detectors.loss.overfitting import Overfitting
from mlflow_stability.detectors.loss.plateau import Plateau
from mlflow_stability.detectors.loss.repeated_data import RepeatedData
from mlflow_stability.detectors.optimizer.learning_rate_jump import LearningRateJump
from mlflow_stability.detectors.optimizer.loss_scale_collapse import LossScaleCollapse
from mlflow_stability.detectors.reported.endings import WAYS_TO_END

_ENDS = {each.kind: each.remedies for each in WAYS_TO_END}


@dataclass(frozen=True, slots=True)
class CauseDocumentation:
    """What is to be said of one cause."""

    name: str
    """The word for programs, as `Cause.name` has it."""
    meaning: str
    """What has happened, in one sentence."""
    evidence: str
    """What is seen of it, and by which numbers it is told."""
    wrong: str
    """When another cause looks the same."""
    remedies: tuple[str, ...]
    """What goes against it, most useful first."""


CAUSES: tuple[CauseDocumentation, ...] = (
    CauseDocumentation(
        "learning_rate_jump",
        "The learning rate jumped shortly before.",
        "The learning rate rose in one step beyond the highest so far, within the 50 points before the first sign: "
        "what the detector `learning_rate_jump` finds. Warm-ups and warm restarts are none. After a resume: the rate "
        "was 1.5 times that before it.",
        "A jump that the training tolerates may come before a trouble of another origin.",
        LearningRateJump.remedies,
    ),
    CauseDocumentation(
        "learning_rate_too_high",
        "The learning rate was higher than the model tolerates.",
        "One of: the first updates changed the weights by a tenth of their norm or more; the rate was rising and the "
        "highest so far; it was above 0.01 with the Adam family; it was above 0.1 and nothing was learned at it.",
        "A rise that happens to end where a bad batch comes; an architecture that is made for large rates.",
        ("Lower the learning rate by a factor of 2 to 5.",),
    ),
    CauseDocumentation(
        "learning_rate_too_low",
        "The learning rate was so low that nothing could move.",
        "It never rose above 1e-8.",
        "An optimizer that does not scale its steps by the logged rate.",
        ("Raise the learning rate.",),
    ),
    CauseDocumentation(
        "no_warm_up",
        "The learning rate stood at its highest from the first step on.",
        "It began in the first twentieth of the run, at the highest rate; or the first updates moved the weights by "
        "more than 2 % of their norm and the loss rose on them.",
        "Bad initial weights, or a rate that would be too high after a warm-up as well.",
        ("Warm up the learning rate over 1-5 % of the steps.",),
    ),
    CauseDocumentation(
        "bad_batch",
        "One batch, or a few, did it.",
        "The loss leapt within one step out of a training that was sound, or a spike of at most three points came back "
        "by itself; or the batch itself was not finite; or the step was skipped and the next batches were as usual.",
        "One step at an unstable point looks the same where gradient norm and learning rate are not logged.",
        ("Inspect the batch at this step.",),
    ),
    CauseDocumentation(
        "overflow",
        "Numbers grew beyond what their type can hold.",
        "Loss or gradient norm was infinite before anything was NaN, or the operation that broke was given large "
        "finite numbers.",
        "A division by zero is infinite as well.",
        ("Train in bf16 instead of fp16.", "Look for the module whose output overflows."),
    ),
    CauseDocumentation(
        "fp16_scale",
        "The loss scale drove gradients in fp16 beyond 65504, or had been driven down by them.",
        "The scale was cut three times without growing, or was raised 8-fold until gradients of usual size overflowed. "
        "Not named where nothing is computed in fp16.",
        "The search of a scaler for its first scale.",
        LossScaleCollapse.remedies,
    ),
    CauseDocumentation(
        "gradient_explosion",
        "The gradients exploded before the loss did.",
        "The gradient norm just before was 5 times its usual one and 6 deviations above it, or had been growing "
        "without end.",
        "Gradients that follow from a loss that is rising already; where each step is logged the order tells.",
        GradientExplosion.remedies,
    ),
    CauseDocumentation(
        "vanishing_gradients",
        "There was no gradient left to learn from.",
        "The gradient norm fell below 1e-5, or to a tenth of what it was at first, while the loss stood still; or the "
        "norms of layers end at one of them.",
        "A training that has learned all there is has small gradients, too.",
        GradientVanishing.remedies,
    ),
    CauseDocumentation(
        "gradient_non_finite",
        "The backward pass broke while the loss was still finite.",
        "The gradient norm was not finite at a step whose loss was, or the broken step was run again and it was born "
        "on the way back.",
        "A norm that overflows though each gradient is finite.",
        (
            "Keep what goes into roots, divisions and norms away from zero: add a small number.",
            "Lower the loss scale, or train in bf16, where gradients come back through half precision.",
        ),
    ),
    CauseDocumentation(
        "gradients_not_cleared",
        "Gradients pile up, for nothing clears them between steps.",
        "The gradient norm grew to 2.5 times its usual one by about one gradient in each step, as a sum does, while "
        "the loss was as usual.",
        "A slow growth of the gradients themselves.",
        ("Look whether optimizer.zero_grad() runs in every step, or after each accumulation.",),
    ),
    CauseDocumentation(
        "loss_function",
        "The loss function made the first number that is not finite.",
        "The broken step was run again, and what went into the loss was finite.",
        "Labels or scores that no loss function can bear.",
        ("Look at the labels, and at logarithms, roots and divisions in the loss function.",),
    ),
    CauseDocumentation(
        "invalid_operation",
        "An operation of the model is not defined for what went into it.",
        "The broken step was run again, and modest finite numbers went into the operation that broke.",
        "Inputs that should never have come there.",
        ("Keep the inputs of this operation within its range: clamp them, or add a small number.",),
    ),
    CauseDocumentation(
        "tensor_from_outside",
        "A tensor that the script keeps for itself was not finite.",
        "The broken step was run again, and the number came from no input, weight or buffer.",
        "A tensor that the script computes from the batch.",
        ("Look at the tensor that the script keeps there.",),
    ),
    CauseDocumentation(
        "optimizer_state",
        "The state of the optimizer was not finite, or absurd.",
        "The weights broke in an update whose gradients were finite.",
        "Weights that something else wrote into.",
        ("Restart from a checkpoint before this step.", "Lower beta2 or clip gradients; give eps a larger value."),
    ),
    CauseDocumentation(
        "damaged_weights",
        "Weights or buffers were damaged, and not by a gradient.",
        "Several batches in a row broke on weights that had worked one step before, or absurd numbers came out of a "
        "modest batch.",
        "A first bad update that was not recorded.",
        (
            "Restart from a checkpoint before this step.",
            "Look at what writes into weights besides the optimizer, and at the memory of the device.",
        ),
    ),
    CauseDocumentation(
        "hardware",
        "The device gave another result the second time.",
        "The batch that broke was run again on the same weights with the same random numbers, and was finite.",
        "An operation that is not deterministic; a model that keeps something from one call to the next.",
        ("Test the device, and run the same step on another.",),
    ),
    CauseDocumentation(
        "weight_decay",
        "The weights shrank away under a weight decay.",
        "Their norm fell below 0.7 of itself from one measurement to the next. Not named where the weight decay is 0, "
        "and never across a rollback.",
        "Weights that the script itself scales or replaces.",
        ("Lower the weight decay.", "Restart from a checkpoint before this step."),
    ),
    CauseDocumentation(
        "optimizer_lag",
        "Gradients had outrun what Adam remembers of their size, so that steps were too large.",
        "The AdamW RMS of a layer rose above 2.3 and to twice what it was. Not named with other optimizers.",
        "A bad batch raises it in the very step, which is not counted.",
        (
            "Lower Adam's beta2 to 0.95-0.98.",
            "Clip updates by their RMS, as StableAdamW does, or train with SPAMAdam.",
        ),
    ),
    CauseDocumentation(
        "configuration_changed",
        "A setting of the training was changed just before.",
        "A recorded setting differs from what it was at the look 10 steps earlier. Only possible: not all changes "
        "matter.",
        "A change that is meant, and a trouble of another origin.",
        ("See whether what was changed is meant.",),
    ),
    CauseDocumentation(
        "frozen_parameters",
        "The number of parameters that are trained was changed just before.",
        "Parameters that were trained are frozen, or the other way round, since the look 10 steps earlier.",
        "Training in stages, on purpose.",
        ("See whether these parameters are meant to be frozen.",),
    ),
    CauseDocumentation(
        "repeated_data",
        "The same batch came again and again.",
        "The loss lost its noise from batch to batch and fell below all of the hundred losses before.",
        "Full-batch training has no such noise from the start.",
        RepeatedData.remedies,
    ),
    CauseDocumentation(
        "constant_output",
        "The output does not depend on the input any more.",
        "The loss lost its noise without falling.",
        "A data set whose batches are all alike.",
        ("Look whether the output of the model depends on its input.",),
    ),
    CauseDocumentation(
        "attention_logit_growth",
        "Attention logits had grown so large that attention sees one place only.",
        "The largest logit of a layer rose above 100 and to twice what it was, or above 50 and to ten times that.",
        "Logits follow a learning rate that is too high; it is asked first.",
        ("Normalise queries and keys, or clip them.", "Lower the learning rate by a factor of 2 to 5."),
    ),
    CauseDocumentation(
        "attention_collapse",
        "The attention of a layer had collapsed to one place.",
        "Its entropy fell from above 0.1 to below 0.05 of the highest possible.",
        "Heads that look at one place by design.",
        ("Normalise queries and keys, or clip them.", "Lower the learning rate by a factor of 2 to 5."),
    ),
    CauseDocumentation(
        "sdr_collapse",
        "Sparse codes had become alike.",
        "Fewer than 30 % of the patterns were unique, or of the bits ever on.",
        "Few different inputs.",
        ("Raise the temperature by a factor of 2 to 3.", "Add a loss that separates tokens.", "Use more bits."),
    ),
    CauseDocumentation(
        "saturated_activation",
        "Units were pinned to the ends of their activation.",
        "More than half of a layer's units stood there, a fifth more than at the start.",
        "A gate that is meant to be shut.",
        ("Lower the learning rate.", "Normalise what goes into the activation."),
    ),
    CauseDocumentation(
        "representation_collapse",
        "The outputs of a layer had collapsed to a few directions.",
        "Their effective rank fell to a tenth of what it was.",
        "A task with few classes needs few directions.",
        ("Lower the learning rate.", "Look at the loss: it may reward one answer to all."),
    ),
    CauseDocumentation(
        "dead_units",
        "Units had died.",
        "More than half of a layer's units were never active, a fifth more than at the start.",
        "Sparse activations by design.",
        ("Lower the learning rate.", "Use an activation that has a slope everywhere."),
    ),
    CauseDocumentation(
        "guessing",
        "The model does no better than guessing.",
        "The loss stays at the logarithm of the number of classes.",
        "A loss that is at such a level by accident.",
        Plateau.remedies,
    ),
    CauseDocumentation(
        "overfitting",
        "The model learns its training data by heart.",
        "The validation loss rises while the training loss falls.",
        "Validation data of another kind.",
        Overfitting.remedies,
    ),
    CauseDocumentation(
        "out_of_memory",
        "The process ran out of memory.",
        "How the process ended was recorded.",
        "Memory that another process took.",
        _ENDS["out_of_memory"],
    ),
    CauseDocumentation(
        "external_kill",
        "The process was killed from outside.",
        "It ended by a signal.",
        "The kernel kills a process that takes too much memory.",
        _ENDS["killed"],
    ),
    CauseDocumentation(
        "exception",
        "The script raised an exception.",
        "How the process ended was recorded, with the exception.",
        "The exception may come of a trouble that came before it; that is asked first.",
        _ENDS["crashed"],
    ),
    CauseDocumentation(
        "stall",
        "The process hung: no step was finished for a long time.",
        "No step came for many times the usual time between two.",
        "A long validation or checkpoint between two steps.",
        _ENDS["stall"],
    ),
)
"""All of them, in the order in which they are listed."""
BY_NAME = {each.name: each for each in CAUSES}
