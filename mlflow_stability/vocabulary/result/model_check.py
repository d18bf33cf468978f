"""What was found in a model as it is now, without training: findings, its layers, and the loss of one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.vocabulary.result.remedy import Remedy
from mlflow_stability.vocabulary.result.severity import Severity
from mlflow_stability.vocabulary.text.phrases import counted

_NOUNS = {Severity.CRITICAL: "critical finding", Severity.WARNING: "warning", Severity.INFO: "remark"}


@dataclass(frozen=True, slots=True, repr=False)
class ModelFinding:
    """One thing that is wrong, or seldom intended, in a model."""

    check: str
    """Which check found it: ``nonfinite_values``, ``not_in_optimizer``, ``loss_above_chance``, …"""
    severity: Severity
    """INFO, WARNING or CRITICAL."""
    message: str
    """What was found, with numbers, in one sentence."""
    place: str = ""
    """The module or parameter; of several, the first."""
    evidence: dict[str, float] = field(default_factory=dict)
    """The numbers behind the message."""
    remedies: tuple[Remedy, ...] = ()
    """What to do, most useful first."""

    @property
    def kind(self) -> str:
        """The check, under the name that all findings have."""
        return self.check

    def __repr__(self) -> str:
        return f"<ModelFinding {self.severity.name} {self.check}: {self.message}>"


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """The numbers of one parameter."""

    name: str
    """By its path in the model."""
    shape: tuple[int, ...]
    """Its dimensions."""
    dtype: str
    """``float32``, ``bfloat16``, ..."""
    trainable: bool
    """Whether it requires a gradient."""
    rms: float
    """Root of the mean square of its values."""
    largest: float
    """Largest absolute value."""
    nonfinite: int
    """How many values are NaN or infinite."""
    grad_norm: float | None = None
    """L2 norm of its gradient for the batch; None: it has none, or no batch was given."""


@dataclass(frozen=True, slots=True)
class ActivationCheck:
    """The numbers of what one module puts out for the batch, of at most 16,384 of its values."""

    name: str
    """By its path in the model; the class of the model for the model itself."""
    mean: float
    """Mean of its values."""
    std: float
    """Standard deviation of its values."""
    min: float
    """Smallest value."""
    max: float
    """Largest value."""
    zero_share: float
    """Share of values that are exactly zero."""
    nonfinite_share: float
    """Share of values that are NaN or infinite."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The result of `mlflow_stability.check`."""

    model: str
    """The class of the model."""
    parameters: int
    """How many numbers its parameters have."""
    trainable: int
    """How many of them require a gradient."""
    findings: tuple[ModelFinding, ...] = ()
    """The worst first."""
    layers: tuple[LayerCheck, ...] = ()
    """Every parameter, in the order of the model."""
    activations: tuple[ActivationCheck, ...] = ()
    """What each module puts out for the batch, in the order in which their calls end; empty without a batch."""
    loss: float | None = None
    """The loss of the batch; None where it was not computed."""
    chance: float | None = None
    """What the loss is for guessing; None where that is not known."""
    grad_norm: float | None = None
    """L2 norm of all gradients together."""
    gradient_flow: float | None = None
    """The share of layers whose gradient norm lies in a healthy band."""
    not_checked: tuple[str, ...] = ()
    """What was not checked, and why."""

    @property
    def severity(self) -> Severity:
        """The worst of the findings; INFO where there is none."""
        return max((each.severity for each in self.findings), default=Severity.INFO)

    @property
    def verdict(self) -> str:
        """One sentence."""
        counts = [(noun, sum(one.severity == each for one in self.findings)) for each, noun in _NOUNS.items()]
        found = ", ".join(counted(count, noun) for noun, count in counts if count)
        return f"{self.model}: {found}." if found else f"{self.model}: nothing is wrong."

    def __repr__(self) -> str:
        lines = [f"{each.severity.name} {each.check}: {each.message}" for each in self.findings]
        return "\n  ".join([f"<ModelCheck of {self.verdict}", *lines]) + ">"
