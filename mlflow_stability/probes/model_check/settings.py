"""Checks the settings of a model and its optimizers that are seldom intended, and the mode in which it is trained.

There is at most one finding of each check; while a training runs, they are events at INFO. Guarantees: one walk over
modules and parameters; no value is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from types import FunctionType

from torch import Tensor
from torch.nn import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout, Module, functional
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.setup import EvaluationMode, EvaluationModeFacts, LintFacts
from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.model_discovery import plain_name
from mlflow_stability.probes.tensor_sums import HALVES
from mlflow_stability.vocabulary.result import Action, Finding, ModelFinding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted, some_of

_NORMS = ("LayerNorm", "GroupNorm", "RMSNorm")
_EPS = ("eps", "variance_epsilon", "epsilon")  # as torch, Llama and TensorFlow's heirs call it
_SCALES = ("scale", "scaling", "softmax_scale")
# Optimizers whose betas average gradients and their squares; those of others, such as NovoGrad, do not.
_ADAMS = re.compile(r"adam|lamb", re.IGNORECASE)
_NAMED = 3


MIN_EPS_IN_HALF = 1e-6  # of a normalisation with weights in half precision: a smaller one is lost beside 1
MIN_EPS = 1e-8  # of any other: the gradient of a constant row is multiplied by its inverse root
MIN_SCALE = 1e-4  # of attention logits: with a smaller one attention is uniform


def model_lint(
    models: Sequence[Module], optimizers: Sequence[Optimizer], step: int, trained: Container[int] = ()
) -> list[Finding]:
    """Return the findings as events of a training, when gradients are complete.

    All are at INFO: the optimizers of later steps are not known yet. `trained` are parameters that were trained before,
    by identity; they are not frozen.
    """
    return [
        lint_event(
            finding.check,
            finding.message,
            step,
            place=finding.place,
            numbers=finding.evidence,
            remedies=finding.remedies,
        )
        for finding in settings_found(models, optimizers, trained)
    ]


def model_finding(
    check: str, severity: Severity, message: str, place: str = "", remedies: Sequence[Remedy] = (), **evidence: float
) -> ModelFinding:
    numbers = {name: float(number) for name, number in evidence.items()}
    return ModelFinding(check, severity, message, place, numbers, tuple(remedies))


def lint_event(
    check: str, text: str, step: int, *, place: str, numbers: Mapping[str, float], remedies: tuple[Remedy, ...]
) -> Finding:
    facts = LintFacts(check, text, tuple(numbers.items()))
    return Finding.at(facts, step, Severity.INFO, place=place, remedies=remedies)


def settings_found(
    models: Sequence[Module], optimizers: Sequence[Optimizer] | None, trained_before: Container[int] | None = None
) -> list[ModelFinding]:
    """Return the findings about these models; without optimizers, none about what they train.

    `trained_before` is given while a training runs and gradients are complete; parameters without one take no part in
    the loss, as those of an averaged copy or of a target network.
    """
    named = [
        (plain_name(name), parameter)
        for model in models
        for name, parameter in Module.named_parameters(model, remove_duplicate=False)
    ]
    missing = twice = None
    if optimizers is not None:
        beside = set() if trained_before is None else _beside(models)
        missing = _without_optimizer([pair for pair in named if id(pair[1]) not in beside], optimizers)
        twice = _trained_twice(named, optimizers)
    frozen = named if trained_before is None else [pair for pair in named if id(pair[1]) not in trained_before]
    swapped = _betas_swapped(optimizers or ())
    findings = (
        *(_small_eps(models), _small_scale(models), _lasting_dropout(models)),
        *(missing, _tied(named), _frozen(frozen, named), twice, swapped),
    )
    return [finding for finding in findings if finding is not None]


def _small_eps(models: Sequence[Module]) -> ModelFinding | None:
    small = []
    for name, module in _modules(models):
        if type(module).__name__.endswith(_NORMS):
            eps = _number(module, _EPS)
            weights = [weight for weight in module._parameters.values() if weight is not None]
            half = any(weight.dtype in HALVES for weight in weights)
            least = MIN_EPS_IN_HALF if half else MIN_EPS
            if eps is not None and eps < least:
                small.append((eps, name, half, least))
    if not small:
        return None
    eps, name, half, least = min(small, key=lambda norm: norm[0])
    message = (
        f"{count_of(small, 'normalisation')} in {'half' if half else 'single'} precision with a very small epsilon "
        f"({name}: {eps:g}, usually at least {least:g}). Rows without variance get very large gradients."
    )
    # BERT was published with 1e-12 in single precision, and trains.
    severity = Severity.WARNING if half else Severity.INFO
    remedies = (Remedy(Action.SET_EPS_OF_NORM),)
    return model_finding("small_eps", severity, message, name, remedies, eps=eps, modules=len(small))


def _small_scale(models: Sequence[Module]) -> ModelFinding | None:
    small = []
    for name, module in _modules(models):
        words = f"{name}.{type(module).__name__}".lower()
        scale = _number(module, _SCALES) if "attn" in words or "attention" in words else None
        if scale is not None and 0 <= scale < MIN_SCALE:
            small.append((name, scale))
    if not small:
        return None
    name, scale = small[0]
    message = (
        f"{count_of(small, 'attention module')} scaled by less than {MIN_SCALE:g} ({name}: "
        f"{scale:g}). Attention weights are then nearly uniform over the keys."
    )
    remedies = (Remedy(Action.SCALE_ATTENTION_LOGITS),)
    return model_finding("small_scale", Severity.WARNING, message, name, remedies, scale=scale, modules=len(small))


# Functions whose argument `training` is True unless it is given.
_DROPOUTS_AS_FUNCTIONS = (functional.dropout, functional.dropout2d, functional.dropout3d, functional.alpha_dropout)


def _lasting_dropout(models: Sequence[Module]) -> ModelFinding | None:
    lasting = [name for name, module in _modules(models) if _has_lasting_dropout(module)]
    if not lasting:
        return None
    message = (
        f"{counted(len(lasting), 'module')} with a dropout function that is not given `training` ({lasting[0]}): it "
        "stays on in evaluation."
    )
    remedies = (Remedy(Action.PASS_TRAINING),)
    return model_finding("lasting_dropout", Severity.WARNING, message, lasting[0], remedies, modules=len(lasting))


def _has_lasting_dropout(module: Module) -> bool:
    """Whether `forward` calls a dropout function of PyTorch, and names neither the mode nor a constant in its place."""
    forward = getattr(type(module), "forward", None)  # the class of a scripted module raises for it
    if not isinstance(forward, FunctionType) or "training" in forward.__code__.co_names:
        return False
    code = forward.__code__
    if any(value is True or value is False or _names_training(value) for value in code.co_consts):
        return False
    # A name that the module has, too, may be its own layer. `hasattr(module, name)` would compute parametrized weights.
    own = {*vars(module), *module._modules, *dir(type(module))}
    names = [name for name in code.co_names if name not in own]
    has_functions = any(name == "functional" or forward.__globals__.get(name) is functional for name in names)
    called = [
        forward.__globals__.get(name, getattr(functional, name, None) if has_functions else None) for name in names
    ]
    return any(function is dropout for function in called for dropout in _DROPOUTS_AS_FUNCTIONS)


def _names_training(constant: object) -> bool:
    return isinstance(constant, tuple) and "training" in constant


def _without_optimizer(named: Sequence[tuple[str, Tensor]], optimizers: Sequence[Optimizer]) -> ModelFinding | None:
    trained = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
    missing = [pair for pair in first_names(named) if pair[1].requires_grad and id(pair[1]) not in trained]
    if not missing:
        return None
    with_gradient = sum(parameter.grad is not None for _, parameter in missing)
    having = f", and {with_gradient} have a gradient" if with_gradient else ""
    count = count_of(missing, "parameter")
    message = f"{count} in no optimizer, although requires_grad is True{having}: {names_of(missing)}."
    numbers = {"parameters": len(missing), "values": values_in(missing), "with_gradient": with_gradient}
    remedies = (Remedy(Action.ADD_TO_OPTIMIZER),)
    return model_finding("not_in_optimizer", Severity.WARNING, message, place_of(missing), remedies, **numbers)


def _tied(named: Sequence[tuple[str, Tensor]]) -> ModelFinding | None:
    names: dict[int, list[str]] = {}
    for name, parameter in named:
        names.setdefault(id(parameter), []).append(name)
    tied = [shared for shared in names.values() if len(shared) > 1]
    if not tied:
        return None
    groups = some_of([" = ".join(shared[:_NAMED]) for shared in tied], _NAMED, between="; ")
    message = f"{count_of(tied, 'parameter')} shared under several names: {groups}."
    return model_finding("tied", Severity.INFO, message, tied=len(tied))


# Parameters without a gradient, or in a module in evaluation mode beside ones that are trained.
def _beside(models: Sequence[Module]) -> set[int]:
    beside: set[int] = set()
    for model in models:
        for module in Module.modules(model):
            evaluates = model.training and not module.training
            own = [parameter for parameter in module._parameters.values() if parameter is not None]
            beside.update(id(tensor) for tensor in own if evaluates or tensor.grad is None)
    return beside


def _frozen(candidates: Sequence[tuple[str, Tensor]], named: Sequence[tuple[str, Tensor]]) -> ModelFinding | None:
    frozen = [pair for pair in first_names(candidates) if not pair[1].requires_grad]
    if not frozen:
        return None
    values, total = values_in(frozen), values_in(first_names(named))
    share = values / max(total, 1)
    message = f"{count_of(frozen, 'parameter')} frozen, {share:.0%} of all values: {names_of(frozen)}."
    return model_finding("frozen", Severity.INFO, message, place_of(frozen), frozen=len(frozen), values=values)


def _trained_twice(named: Sequence[tuple[str, Tensor]], optimizers: Sequence[Optimizer]) -> ModelFinding | None:
    times = Counter(key for optimizer in optimizers for key in set(map(id, parameters_of(optimizer))))
    twice = [pair for pair in first_names(named) if times[id(pair[1])] > 1]
    if not twice:
        return None
    message = f"{count_of(twice, 'parameter')} in more than one optimizer: {names_of(twice)}."
    remedies, count = (Remedy(Action.ADD_TO_ONE_OPTIMIZER),), len(twice)
    return model_finding("in_two_optimizers", Severity.WARNING, message, place_of(twice), remedies, parameters=count)


# Adam that averages gradients over more steps than their squares, so that its steps are not bounded.
def _betas_swapped(optimizers: Sequence[Optimizer]) -> ModelFinding | None:
    for optimizer in optimizers:
        for group in optimizer.param_groups if _ADAMS.search(type(optimizer).__name__) else ():
            betas = group.get("betas")
            if not isinstance(betas, list | tuple) or len(betas) != 2:
                continue
            first, second = betas
            if not all(isinstance(beta, float | int) for beta in betas) or first <= second:
                continue
            message = (
                f"{type(optimizer).__name__} with betas=({first:g}, {second:g}): the first is above the second "
                "(usually 0.9 and 0.999). One large gradient then moves the weights without a bound for many steps."
            )
            remedies = (Remedy(Action.SWAP_BETAS, target=(float(second), float(first))),)
            return model_finding(
                "betas_swapped", Severity.WARNING, message, remedies=remedies, beta1=first, beta2=second
            )
    return None


def _modules(models: Sequence[Module]) -> Iterator[tuple[str, Module]]:
    for model in models:
        for name, module in Module.named_modules(model):
            yield plain_name(name) or type(module).__name__, module


def _number(module: Module, names: Sequence[str]) -> float | None:
    values = (vars(module).get(name) for name in names)
    return next(
        (float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)), None
    )


def first_names(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return each parameter by its first name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, parameter in named:
        first.setdefault(id(parameter), (name, parameter))
    return list(first.values())


def values_in(named: Sequence[tuple[str, Tensor]]) -> float:
    return float(sum(parameter.numel() for _, parameter in named))


def place_of(named: Sequence[tuple[str, Tensor]]) -> str:
    return named[0][0].rpartition(".")[0]


def names_of(named: Sequence[tuple[str, Tensor]]) -> str:
    return some_of([name for name, _ in named])


def count_of(items: Collection[object], noun: str, plural: str = "") -> str:
    """Return `1 parameter is`, `5 parameters are`."""
    return f"{counted(len(items), noun, plural)} {'is' if len(items) == 1 else 'are'}"


MIN_ROWS = 4  # of a batch normalisation: of two rows, each is the mirror image of the other
_DROPOUTS = (AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout)


def evaluation_mode(models: Sequence[Module], optimizers: Sequence[Optimizer], step: int) -> Finding | None:
    """Return a finding if a model of these optimizers is in evaluation mode, and parts of it depend on the mode."""
    evaluating = [model for model in models if not model.training]
    if not evaluating:
        return None
    trained = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
    whole = [model for model in evaluating if any(id(parameter) in trained for parameter in model.parameters())]
    off = [(name, module) for name, module in _modules(whole) if not module.training]
    norms = [name for name, module in off if isinstance(module, torch_api.BatchNorm) and _is_trained(module, trained)]
    dropouts = [name for name, module in off if isinstance(module, _DROPOUTS) and module.p > 0]
    if not norms and not dropouts:
        return None
    facts = EvaluationModeFacts(len(norms), len(dropouts), (norms or dropouts)[0])
    severity = Severity.WARNING if norms else Severity.INFO
    return Finding.at(facts, step, severity, remedies=EvaluationMode.remedies)


def few_rows(models: Sequence[Module], rows: int, step: int) -> Finding | None:
    """Return a finding if batch normalisations average very few rows; ``rows`` is of the last batch, or 0."""
    if not 0 < rows < MIN_ROWS:
        return None
    names = [name for name, module in _modules(models) if isinstance(module, torch_api.BatchNorm) and module.training]
    if not names:
        return None
    message = (
        f"{count_of(names, 'batch normalisation')} over batches of {counted(rows, 'row')} ({names[0]}), "
        f"usually at least {MIN_ROWS}. Means of so few rows are noise, and differ from those in evaluation."
    )
    evidence = {"rows": float(rows), "modules": float(len(names))}
    remedies = (Remedy(Action.USE_LARGER_BATCHES_OR_GROUP_NORM),)
    return lint_event("few_rows", message, step, place=names[0], numbers=evidence, remedies=remedies)


def _is_trained(module: Module, trained: Container[int]) -> bool:
    own = (parameter for parameter in module._parameters.values() if parameter is not None)
    return vars(module).get("track_running_stats") is True and any(
        parameter.requires_grad and id(parameter) in trained for parameter in own
    )
