"""Checks whether a model is trained in the right mode, and over enough rows for its batch normalisations.

In: models, and the optimizers that train them, as they are at an optimizer step. Out: events. Guarantees: where no
model is in evaluation mode and batches have `FEWEST_ROWS`, one attribute is read of each model; no value ever is.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from torch.nn import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout, Module
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.setup import EvaluationMode, EvaluationModeFacts
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.model_check.settings import count_of, lint_event
from mlflow_stability.probes.objects.module_names import plain_name
from mlflow_stability.probes.tensors.gradient_norm import parameters_of
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

FEWEST_ROWS = 4
"""The fewest rows that a batch normalisation should average: of two rows, each is the mirror image of the other."""
_DROPOUTS = (AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout)


def evaluation_mode(models: Sequence[Module], optimizers: Sequence[Optimizer], step: int) -> Finding | None:
    """Whether one of these models is in evaluation mode as a whole, and what of it behaves otherwise therefore."""
    whole = [model for model in models if not model.training]
    if not whole:
        return None
    trained = {id(parameter) for each in optimizers for parameter in parameters_of(each)}
    off = [(name, module) for name, module in _modules(whole) if not module.training]
    norms = [name for name, module in off if isinstance(module, torch_api.BatchNorm) and _is_trained(module, trained)]
    dropouts = [name for name, module in off if isinstance(module, _DROPOUTS) and module.p > 0]
    if not norms and not dropouts:
        return None
    facts = EvaluationModeFacts(len(norms), len(dropouts), (norms or dropouts)[0])
    severity = Severity.WARNING if norms else Severity.INFO
    return Finding.at(facts, step, severity, remedies=EvaluationMode.remedies)


def few_rows(models: Sequence[Module], rows: int, step: int) -> Finding | None:
    """Whether batch normalisations average very few rows; ``rows``: of the last batch, 0 where none was seen."""
    if not 0 < rows < FEWEST_ROWS:
        return None
    found = [name for name, module in _modules(models) if isinstance(module, torch_api.BatchNorm) and module.training]
    if not found:
        return None
    message = (
        f"{count_of(found, 'batch normalisation')} over batches of {rows} row{'s' if rows > 1 else ''} ({found[0]}), "
        f"usually at least {FEWEST_ROWS}. Means of so few rows are noise, and differ from those in evaluation."
    )
    evidence = {"rows": float(rows), "modules": float(len(found))}
    remedies = (Remedy(Action.USE_LARGER_BATCHES_OR_GROUP_NORM),)
    return lint_event("few_rows", message, step, place=found[0], numbers=evidence, remedies=remedies)


def _is_trained(module: Module, trained: Container[int]) -> bool:
    """Whether it keeps running statistics, and an optimizer changes its own weights."""
    own = (each for each in module._parameters.values() if each is not None)
    return vars(module).get("track_running_stats") is True and any(
        each.requires_grad and id(each) in trained for each in own
    )


def _modules(models: Sequence[Module]) -> Iterator[tuple[str, Module]]:
    for model in models:
        for name, module in Module.named_modules(model):
            yield plain_name(name) or type(module).__name__, module
