"""Names of the modules of a model as its author knows them, whatever was wrapped around them.

Guarantees: the same names with and without DDP, FSDP, ``torch.compile`` and activation checkpoints; a tied parameter
has its first name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from torch.nn import Module

# Names by which wrappers hold the wrapped module.
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def plain_name(name: str) -> str:
    """Return a name without the wrappers in it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def unwrapped(module: Module) -> Module:
    """Return the model inside wrappers: it runs without a compiler or collectives."""
    for _ in range(len(WRAPPERS) + 1):
        inner = next((module._modules[name] for name in WRAPPERS if set(module._modules) == {name}), None)
        if inner is None:
            return module
        module = inner
    return module


def owners_of_parameters(models: Sequence[Module]) -> dict[int, str]:
    """Return the name of the module that owns each parameter, by identity, in the order of the models.

    Names of several models begin with the model's class: ``Generator.net.0``, or ``Net_0.up`` where classes repeat.
    The outermost module has the name of its class.
    """
    names = names_of_modules(models)
    owners: dict[int, str] = {}
    for module in chain.from_iterable(map(Module.modules, models)):
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), names[id(module)])
    return owners


def names_of_modules(models: Sequence[Module]) -> dict[int, str]:
    """Return the name of each module, by identity, as of owners of parameters."""
    classes = [_innermost_class(model) for model in models]
    often = Counter(classes)
    names: dict[int, str] = {}
    for at, (model, title) in enumerate(zip(models, classes, strict=True)):
        title = f"{title}_{at}" if often[title] > 1 else title
        prefix = f"{title}." if len(models) > 1 else ""
        modules = list(Module.named_modules(model))
        owners = [plain_name(name) for name, module in modules if module._parameters]
        is_plain = len(set(owners)) == len(owners)  # else two modules would have the same name without wrappers
        for path, module in modules:
            name = plain_name(path) if is_plain else path
            names.setdefault(id(module), prefix + name if name else title)
    return names


def _innermost_class(model: Module) -> str:
    classes = [type(module) for name, module in Module.named_modules(model) if not plain_name(name)]
    return classes[-1].__name__
