"""Names the modules inside of models whose forward passes are looked into.

In: models, one after another. Out: for each the modules in it with their names. Guarantees: the names are those of
layers: without what wrappers add, and with the model's class in front where several models train; neither models nor
modules are kept alive.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import Module

from mlflow_stability.probes.objects.module_names import plain_name, unwrapped


class WatchedModules:
    """The models that were met, so that modules of two of them are never called alike."""

    def __init__(self, models: Callable[[], Sequence[Module]] | None = None) -> None:
        self._models = models
        """Tells which models train; None: those that were met."""
        self._met: list[weakref.ref[Module]] = []

    def inside(self, root: Module) -> Iterator[tuple[str, Module]]:
        """The modules in `root`, each once and the outermost left out, in the order of the model."""
        title, path = self._place(root)
        scripted: set[Module] = set()
        for name, module in Module.named_modules(root):
            if isinstance(module, torch.jit.ScriptModule):  # hooks do not run in what is inside of it
                scripted.update(Module.modules(module))
            plain = ".".join(filter(None, (path, plain_name(name))))
            if plain and module not in scripted:
                yield title + plain, module

    def _place(self, root: Module) -> tuple[str, str]:
        """What the names of its model's modules begin with, and where in it `root` is; mostly it is the model."""
        part = unwrapped(root)
        for model in () if self._models is None else map(unwrapped, self._models()):
            for name, module in () if model is part else Module.named_modules(model):
                if module is part or module is root:
                    return self._title(model), plain_name(name)
        return self._title(part), ""

    def _title(self, model: Module) -> str:
        """What the names of a model's modules begin with: nothing, where it is the only one."""
        if all(each() is not model for each in self._met):
            self._met.append(weakref.ref(model))
        known = [each() for each in self._met] if self._models is None else map(unwrapped, self._models())
        models = [each for each in known if each is not None]
        if all(each is not model for each in models):
            models.append(model)
        if len(models) == 1:
            return ""
        titles = [type(each).__name__ for each in models]
        at = next(number for number, each in enumerate(models) if each is model)
        repeated = Counter(titles)[titles[at]] > 1
        return f"{titles[at]}_{at}." if repeated else f"{titles[at]}."
