"""Names the modules of a model as its author did, whatever was wrapped around them since.

In: models. Out: for each parameter the name of the module that owns it, in the order of the model. Guarantees: the same
names with and without DDP, FSDP, ``torch.compile`` and activation checkpoints; a tied parameter has its first name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch.nn import Module

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""What wrappers call the module that they wrap."""


def plain_name(name: str) -> str:
    """The name without the wrappers in it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def unwrapped(module: Module) -> Module:
    """Return the model inside of wrappers: it runs without a compiler or collectives."""
    for _ in range(len(WRAPPERS) + 1):
        inner = next((module._modules[name] for name in WRAPPERS if set(module._modules) == {name}), None)
        if inner is None:
            return module
        module = inner
    return module


def owners_of_parameters(models: Sequence[Module]) -> dict[int, str]:
    """Each parameter, by identity, and the name of the module that owns it; in the order of the models.

    Names of several models begin with the model's class: ``Generator.net.0``, or ``Net_0.up`` where classes repeat.
    What the outermost module owns itself goes by its class alone.
    """
    found: dict[int, str] = {}
    for model, names in zip(models, _names_of(models), strict=True):
        for module, name in zip(Module.modules(model), names, strict=True):
            for parameter in module._parameters.values():
                if parameter is not None:
                    found.setdefault(id(parameter), name)
    return found


def names_of_modules(models: Sequence[Module]) -> dict[int, str]:
    """Each module, by identity, and its name, as parameters' owners are called."""
    found: dict[int, str] = {}
    for model, names in zip(models, _names_of(models), strict=True):
        for module, name in zip(Module.modules(model), names, strict=True):
            found.setdefault(id(module), name)
    return found


def _names_of(models: Sequence[Module]) -> list[list[str]]:
    """For each model the names of its modules, in their order."""
    titles = [_innermost_class(each) for each in models]
    often = Counter(titles)
    titles = [f"{title}_{at}" if often[title] > 1 else title for at, title in enumerate(titles)]
    before = [f"{title}." if len(models) > 1 else "" for title in titles]
    return [
        [prefix + name if name else title for name in _module_names(model)]
        for model, title, prefix in zip(models, titles, before, strict=True)
    ]


def _module_names(model: Module) -> list[str]:
    """Plain names; with the wrappers where two modules with parameters would be called alike."""
    raw = [(name, bool(module._parameters)) for name, module in Module.named_modules(model)]
    plain = [plain_name(name) for name, _ in raw]
    owners = [name for name, (_, owns) in zip(plain, raw, strict=True) if owns]
    return plain if len(set(owners)) == len(owners) else [name for name, _ in raw]


def _innermost_class(model: Module) -> str:
    """The class of the model itself, not of what was wrapped around it."""
    classes = [type(module) for name, module in Module.named_modules(model) if not plain_name(name)]
    return classes[-1].__name__
