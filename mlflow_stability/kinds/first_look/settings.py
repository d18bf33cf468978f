"""Settings of modules and optimizers, and initial weights, that are nearly always a mistake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.detectors.streak import Once, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted


@dataclass(frozen=True, slots=True)
class StrongDropoutFacts(Facts):
    kind: ClassVar[str] = "dropout_strong"

    module: str  # The dropout module
    probability: float  # Its probability

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return (
            f"Module {self.module} is a dropout with p={self.probability:g}: it sets {100 * self.probability:.3g}% of "
            "the values to zero; p is the share that is dropped, not the share that is kept."
        )


@dataclass(frozen=True, slots=True)
class StrongDropout(FindingType):
    """A dropout sets nearly all values to zero.

    What it sees: dropout modules of the model in training mode with a probability of {least} or more, below 1.

    Why it matters: what is left is mostly noise, and the model learns little. In some libraries the number is the share
    that is kept; in PyTorch it is the share that is dropped.

    What to try: use 1 - p; 0.1 to 0.5 is usual.

    When it is wrong: a probability that is meant, such as in a study of dropout.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html
    """

    least: float = 0.9  # minimum probability

    kind = "dropout_strong"
    of_setup = True
    noun = "too strong a dropout"
    order = 1141
    question = "Do dropouts keep most values?"
    check_by_hand = "Print p of each dropout: above {least} hardly anything is left."
    remedies = (Remedy(Action.LOWER_DROPOUT),)


@dataclass(frozen=True, slots=True)
class OptimizedTwiceFacts(Facts):
    kind: ClassVar[str] = "optimized_twice"

    tensors: int  # Number of parameters that both have
    share: float  # Their share of the values of the smaller optimizer

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return (
            f"Two optimizers change the same {counted(self.tensors, 'parameter')} in each step "
            f"({self.share:.0%} of the values of one of them)."
        )


@dataclass(frozen=True, slots=True)
class OptimizedTwice(FindingType):
    """Two optimizers change the same parameters in the same step.

    What it sees: two optimizers that both take a step in steps 10 and 20, of which one has {share:percent} or more of
    its values in the other, with the same gradients: no backward pass is between them. An optimizer that another one
    holds does not count.

    Why it matters: each gradient is used twice, with two momenta and two learning rates: steps are larger than either
    rate says.

    What to try: give each parameter to one optimizer.

    When it is wrong: two optimizers that share each update on purpose.

    Reference: https://docs.pytorch.org/docs/stable/optim.html
    """

    share: float = 0.9  # minimum share of the values of the smaller optimizer

    kind = "optimized_twice"
    of_setup = True
    noun = "parameters in two optimizers"
    order = 1142
    question = "Is each parameter in one optimizer only?"
    check_by_hand = "Compare the parameters of all optimizers: no two may have the same one."
    remedies = (Remedy(Action.ADD_TO_ONE_OPTIMIZER),)


@dataclass(frozen=True, slots=True)
class EqualWeightsFacts(Facts):
    kind: ClassVar[str] = "equal_weights"

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return f"Each weight matrix has one value only at {unit} {step}: all units of a layer stay the same."


@dataclass(frozen=True, slots=True)
class EqualWeights(StreakDetector):
    """All weights of each layer have the same value before the first step.

    What it sees: the share of weight matrices, of the first ones that are trained, whose values are all equal before
    the first step. A WARNING where all of them are, of two or more.

    Why it matters: all units of a layer get the same gradient, and stay the same for good: a layer acts as one unit.
    Where weights are zero, most gradients are zero, too.

    What to try: initialise weights at random.

    When it is wrong: a model whose training is not meant to begin here.

    Reference: https://docs.pytorch.org/docs/stable/nn.init.html
    """

    kind = "equal_weights"
    of_setup = True
    noun = "equal weights"
    order = 1145
    question = "Do initial weights differ?"
    check_by_hand = "Print weight.std() of each layer before the first step: it must not be 0."
    quantities = ("weights_equal",)
    remedies = (Remedy(Action.INITIALISE_AT_RANDOM),)
    state_type = Once

    def facts(self, _state: Once, point: Point) -> Facts | None:
        return EqualWeightsFacts() if point.value >= 1 else None


@dataclass(frozen=True, slots=True)
class UntiedWeightsFacts(Facts):
    kind: ClassVar[str] = "untied_weights"

    module: str  # The output layer

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"Weight of module {self.module} has the values of an embedding at {unit} {step}, but is another tensor: "
            "they are not tied."
        )


@dataclass(frozen=True, slots=True)
class UntiedWeights(StreakDetector):
    """An output layer begins as a copy of an embedding, and is trained apart from it.

    What it sees: a linear layer and an embedding whose weights are two tensors of the same shape with the same values
    before the first step, both trained.

    Why it matters: tied weights share one tensor. A copy, such as from `nn.Parameter(embedding.weight.clone())` or
    `weight.data.copy_`, is tied at the first step alone: the model has more parameters than meant, and each half gets
    a part of the gradient.

    What to try: assign the parameter itself, `lm_head.weight = embedding.weight`, after everything that replaces
    parameters.

    When it is wrong: an output layer that is meant to begin as a copy and to be trained apart.

    Reference: https://arxiv.org/abs/1608.05859
    """

    kind = "untied_weights"
    of_setup = True
    noun = "untied weights"
    order = 1146
    question = "Are tied weights one tensor?"
    check_by_hand = "lm_head.weight is embedding.weight must be True."
    quantities = ("copied_embedding",)
    remedies = (Remedy(Action.TIE_WEIGHTS),)
    state_type = Once

    def facts(self, _state: Once, point: Point) -> Facts | None:
        return UntiedWeightsFacts(point.place) if point.value >= 1 else None


@dataclass(frozen=True, slots=True)
class LateClippingFacts(Facts):
    kind: ClassVar[str] = "clipping_late"

    steps: int  # Number of steps in a row
    had_gradients: bool = True  # Whether there was a gradient to clip

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        if not self.had_gradients:
            return (
                f"Gradients are never clipped: clip_grad_norm_ got none, in {counted(self.steps, unit)} in a row. It "
                "runs before backward(), or its generator of parameters was used up."
            )
        return f"Gradients were clipped after the optimizer had used them, in {counted(self.steps, unit)} in a row."


@dataclass(frozen=True, slots=True)
class LateClipping(FindingType):
    """Gradients are clipped after the optimizer step, which has used them unclipped, or before there are any.

    What it sees: `clip_grad_norm_` with a finite limit between the step and the next backward pass, on gradients that
    the step has used, or on parameters without any gradient, in {least} steps in a row or more. INFO, for the training
    may not need the clipping; the cause of a divergence.

    Why it matters: the next `zero_grad()` clears the clipped gradients, so that nothing is clipped.

    What to try: clip between `backward()` and `step()`.

    When it is wrong: gradients that are kept and used again after the clipping.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    least: int = 3  # minimum number of steps in a row

    kind = "clipping_late"
    of_setup = True
    noun = "clipping after the step"
    order = 1149
    severities = (Severity.INFO,)
    question = "Are gradients clipped before the optimizer step?"
    check_by_hand = "clip_grad_norm_ belongs between loss.backward() and optimizer.step()."
    remedies = (Remedy(Action.CLIP_BEFORE_STEP),)


@dataclass(frozen=True, slots=True)
class ScaledClippingFacts(Facts):
    kind: ClassVar[str] = "clipping_scaled"

    clippings: int  # Number of these clippings in a row
    limit: float  # The limit

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"Gradients are clipped at {self.limit:.4g} while the loss scaler has them scaled, "
            f"{self.clippings} times in a row up to {unit} {step}: the real limit is that, divided by the loss scale."
        )


@dataclass(frozen=True, slots=True)
class ScaledClipping(FindingType):
    """Gradients are clipped before the loss scaler has divided them by the loss scale.

    What it sees: `clip_grad_norm_` or `clip_grad_value_` with a limit below {highest} between
    `scaler.scale(loss).backward()` and `scaler.step(optimizer)`, without `scaler.unscale_(optimizer)` before it, in all
    of the last {least} clippings or more, looked at from step 10 on.

    Why it matters: the loss scale is 65,536 at first and changes. Nearly every step is clipped to the limit divided by
    it: SGD hardly moves, and Adam gets gradients of equal size, whatever the batch.

    What to try: `scaler.unscale_(optimizer)` before clipping.

    When it is wrong: a limit that is meant for scaled gradients.

    Reference: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
    """

    least: int = 8  # minimum number of clippings in a row
    highest: float = 1000.0  # limit above which the script may have multiplied it by the loss scale

    kind = "clipping_scaled"
    of_setup = True
    noun = "clipping of scaled gradients"
    order = 1150
    question = "Are gradients unscaled before they are clipped?"
    check_by_hand = "scaler.unscale_(optimizer) belongs between backward() and clip_grad_norm_."
    remedies = (Remedy(Action.UNSCALE_BEFORE_CLIPPING),)


@dataclass(frozen=True, slots=True)
class RecreatedFacts(Facts):
    kind: ClassVar[str] = "optimizer_recreated"

    name: str  # Its class
    looks: int  # Number of steps that were looked at, each with an optimizer of its own

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"Each of {self.looks} {unit}s that were looked at, up to {unit} {step}, has another {self.name} of the "
            "same parameters: its averages of gradients begin again at zero each time."
        )


@dataclass(frozen=True, slots=True)
class OptimizerRecreated(FindingType):
    """An optimizer with averages of gradients is made again for each step.

    What it sees: at steps 1, 2, 3, 10 and 20, {looks} optimizers of the same parameters, each of them new. Only those
    of PyTorch that keep averages count, and SGD with momentum.

    Why it matters: the first step of Adam changes each weight by the learning rate, however small its gradient is, and
    there are only first steps. Momentum has no effect, and schedules of the first optimizer change nothing.

    What to try: make the optimizer once, before the loop.

    When it is wrong: a task of one step that begins again each time, as in some meta-learning.

    Reference: https://docs.pytorch.org/docs/stable/optim.html
    """

    looks: int = 5  # number of looks

    kind = "optimizer_recreated"
    of_setup = True
    noun = "an optimizer for each step"
    order = 1158
    question = "Is there one optimizer for all steps?"
    check_by_hand = "Print id(optimizer) in two steps: it must be the same."
    remedies = (Remedy(Action.MAKE_OPTIMIZER_ONCE),)


@dataclass(frozen=True, slots=True)
class ZeroGroupFacts(Facts):
    """A parameter group whose learning rate is zero, though others are trained."""

    kind: ClassVar[str] = "group_rate_zero"

    group: int  # Number of the group in its optimizer, from 0 on
    share: float  # Its share of the values of the optimizer
    highest: float  # The highest learning rate of the other groups

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"Parameter group {self.group} ({self.share:.0%} of the values of its optimizer) has gradients and a "
            f"learning rate of 0 up to {unit} {step}; other groups have up to {self.highest:.3g}. No step changes it."
        )


@dataclass(frozen=True, slots=True)
class GroupRateZero(FindingType):
    """The learning rate of a parameter group is zero, and other groups are trained.

    What it sees: at steps 10, 20 and 100, a group with gradients, {share:percent} of the values of its optimizer or
    more, whose learning rate is exactly 0, and another one whose rate is not. INFO, for some freeze parts in this way;
    the cause of a loss that does not fall.

    Why it matters: these parameters keep their values, and computing their gradients costs time.

    What to try: give the group a rate; to freeze it, set `requires_grad` to False.

    When it is wrong: a part that is frozen on purpose, and a group whose rate a schedule raises later.

    Reference: https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options
    """

    share: float = 0.01  # minimum share of the values of the optimizer

    kind = "group_rate_zero"
    of_setup = True
    noun = "a parameter group that is not trained"
    order = 1159
    severities = (Severity.INFO,)
    question = "Has each parameter group a learning rate above zero?"
    check_by_hand = 'Print [group["lr"] for group in optimizer.param_groups].'
    remedies = (Remedy(Action.SET_RATE_OF_GROUP),)


@dataclass(frozen=True, slots=True)
class UnusedScheduleFacts(Facts):
    kind: ClassVar[str] = "schedule_unused"

    schedule: str  # Class of the schedule
    rate: float  # Learning rate that it has set
    used: float  # Learning rate of the optimizer that takes the steps

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"{self.schedule} changes an optimizer that took no step up to {unit} {step}; another one trains the same "
            f"parameters, at {self.used:.3g} in place of {self.rate:.3g}: the schedule has no effect."
        )


@dataclass(frozen=True, slots=True)
class ScheduleUnused(FindingType):
    """A learning rate schedule changes an optimizer that never takes a step.

    What it sees: at steps 20, 100 and 1,000, a schedule that was stepped since the look before, whose optimizer never
    took a step, while all its parameters are in other optimizers that do, with another learning rate. INFO where the
    script still has that optimizer, for it may take its turn later.

    Why it matters: the learning rate stays what it was. Usually the optimizer was made again after the schedule.

    What to try: make the schedule after the last optimizer, and of that one.

    When it is wrong: a schedule whose learning rate the script reads and uses in its own way.

    Reference: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    kind = "schedule_unused"
    of_setup = True
    noun = "a schedule without effect"
    order = 1165
    severities = (Severity.INFO, Severity.WARNING)
    question = "Does the schedule change the optimizer that takes the steps?"
    check_by_hand = "scheduler.optimizer is optimizer must be True."
    remedies = (Remedy(Action.SCHEDULE_USED_OPTIMIZER),)
