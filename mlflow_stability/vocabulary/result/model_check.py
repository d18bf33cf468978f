"""Result of a check of a model without training: findings, its layers, and the loss of one batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mlflow_stability.vocabulary.result.finding import Severity
from mlflow_stability.vocabulary.result.remedy import Remedy
from mlflow_stability.vocabulary.text.phrases import counted

_NOUNS = {Severity.CRITICAL: "critical finding", Severity.WARNING: "warning", Severity.INFO: "remark"}


@dataclass(frozen=True, slots=True, repr=False)
class ModelFinding:
    """One thing that is wrong, or seldom intended, in a model.

    Example:

        >>> import torch
        >>> from mlflow_stability import check
        >>> model = torch.nn.Linear(2, 1)
        >>> _ = torch.nn.init.constant_(model.weight, float("nan"))
        >>> check(model).findings[0]
        <ModelFinding CRITICAL nonfinite_parameters: 1 parameter has NaN or infinite values (2 in all): weight.>
    """

    check: str  # which check found it: ``nonfinite_values``, ``not_in_optimizer``, ``loss_above_chance``, …
    severity: Severity  # INFO, WARNING or CRITICAL
    message: str  # what was found, with numbers, in one sentence
    place: str = ""  # the module or parameter; of several, the first
    evidence: dict[str, float] = field(default_factory=dict)  # the numbers behind the message
    remedies: tuple[Remedy, ...] = ()  # what to do, most useful first

    @property
    def kind(self) -> str:
        """The check, under the name that all findings have."""
        return self.check

    def __repr__(self) -> str:
        return f"<ModelFinding {self.severity.name} {self.check}: {self.message}>"


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """The numbers of one parameter."""

    name: str  # by its path in the model
    shape: tuple[int, ...]  # its dimensions
    dtype: str  # ``float32``, ``bfloat16``, ...
    trainable: bool  # whether it requires a gradient
    rms: float  # root of the mean square of its values
    largest: float  # largest absolute value
    nonfinite: int  # how many values are NaN or infinite
    grad_norm: float | None = None  # L2 norm of its gradient for the batch; None: it has none, or no batch was given


@dataclass(frozen=True, slots=True)
class ActivationCheck:
    """The numbers of what one module puts out for the batch, of at most 16,384 of its values."""

    name: str  # by its path in the model; the class of the model for the model itself
    mean: float  # mean of its values
    std: float  # standard deviation of its values
    min: float  # smallest value
    max: float  # largest value
    zero_share: float  # share of values that are exactly zero
    nonfinite_share: float  # share of values that are NaN or infinite


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The result of `mlflow_stability.check`.

    Example:

        >>> import torch
        >>> from mlflow_stability import check
        >>> check(torch.nn.Linear(2, 1)).verdict
        'Linear: nothing is wrong.'
    """

    model: str  # the class of the model
    parameters: int  # how many numbers its parameters have
    trainable: int  # how many of them require a gradient
    findings: tuple[ModelFinding, ...] = ()  # the worst first
    layers: tuple[LayerCheck, ...] = ()  # every parameter, in the order of the model
    activations: tuple[ActivationCheck, ...] = ()  # what modules put out for the batch, as their calls end; or empty
    loss: float | None = None  # the loss of the batch; None where it was not computed
    chance: float | None = None  # what the loss is for guessing; None where that is not known
    grad_norm: float | None = None  # L2 norm of all gradients together
    gradient_flow: float | None = None  # the share of layers whose gradient norm lies in a healthy band
    not_checked: tuple[str, ...] = ()  # what was not checked, and why

    @property
    def severity(self) -> Severity:
        """The worst of the findings; INFO where there is none."""
        return max((finding.severity for finding in self.findings), default=Severity.INFO)

    @property
    def verdict(self) -> str:
        """One sentence."""
        counts = Counter(finding.severity for finding in self.findings)
        parts = [counted(counts[severity], noun) for severity, noun in _NOUNS.items() if counts[severity]]
        return f"{self.model}: {', '.join(parts) or 'nothing is wrong'}."

    def __repr__(self) -> str:
        lines = [f"{finding.severity.name} {finding.check}: {finding.message}" for finding in self.findings]
        return "\n  ".join([f"<ModelCheck of {self.verdict}", *lines]) + ">"
