"""Takes the numbers of representations in one forward pass.

In: the modules that are to be measured, and whether codes are looked for among all others. Out: for each module the
quantities and their values, and what was found out of it. Guarantees: of modules that put out one and the same tensor
one is measured: the one that was named, else the innermost; nothing of the pass is kept but numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Module

from mlflow_stability.probes.activations.activation_probe import output_tensor
from mlflow_stability.probes.activations.activation_samples import axis_of, nature_of
from mlflow_stability.probes.hooks.untracked_ops import untracked
from mlflow_stability.probes.representations.representation_codes import (
    are_codes,
    bits_of,
    may_be_codes,
    share_that_differs,
    spread_rows,
    temperature_of,
)
from mlflow_stability.probes.representations.representation_spectrum import QUANTITIES as OF_ROWS
from mlflow_stability.probes.representations.representation_spectrum import describe_rows
from mlflow_stability.probes.representations.sparse_codes import QUANTITIES as OF_CODES
from mlflow_stability.probes.representations.sparse_codes import describe_codes
from mlflow_stability.probes.step.readback import value_on_host
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType("sdr_input_ratio", "share of inputs that differ", "representations", interval="forward pass"),
    SignalType("sdr_temperature", "parameter or buffer of that name", "representations", interval="forward pass"),
)

INPUTS, TEMPERATURE = "sdr_input_ratio", "sdr_temperature"
Numbers = tuple[tuple[str, ...], Tensor]
"""Quantities, and a row of their values."""


class RepresentationPass:
    """What is seen of one model in one forward pass."""

    def __init__(
        self,
        places: Mapping[str, Module],
        named: Set[str],
        known: Mapping[str, bool],
        everywhere: bool,
        alive: Callable[[], bool],
    ) -> None:
        self.learnt: dict[str, bool] = {}
        """Of modules looked at, whether they put out codes."""
        self.flags: dict[str, Tensor] = {}
        """The same where it is known on the device only."""
        self._places = places
        self._named = named
        self._known = known
        self._everywhere = everywhere
        self._alive = alive
        self._names = {id(module): name for name, module in places.items()}
        self._seen: set[str] = set()
        self._outputs: dict[str, weakref.ref[Tensor]] = {}
        """Of modules that were measured, or may be."""
        self._found: dict[str, tuple[Numbers, int]] = {}
        """The numbers, and how many rows they are of."""
        self._shares: list[tuple[str, int, Tensor]] = []
        """Of what a module was given, in so many rows, the share that differs; of any embedding without its name."""

    def wanted(self) -> Iterator[Module]:
        """The modules that are to be heard."""
        measured = self._named | {name for name, codes in self._known.items() if codes and name in self._places}
        around = {above for name in measured for above in above_of(name)}
        for name, module in self._places.items():
            inputs = name in around or (bool(measured) and isinstance(module, Embedding))
            if self._everywhere or name in measured or inputs:
                yield module

    def take(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        """Runs after each of them; its first call counts."""
        name = self._names.get(id(module))
        if name is None or name in self._seen or not self._alive():
            return
        self._seen.add(name)
        learning = torch.is_grad_enabled()
        with untracked():
            tensor, given = output_tensor(output), output_tensor(args)
            if tensor is not None and not self._is_taken(name, tensor):
                self._measure(name, module, tensor, learning)
            if given is not None:
                self._compare(name, module, given)

    def over(self) -> None:
        """The pass is over: keep nothing of it but numbers."""
        self._alive = lambda: False
        self._places = {}
        self._names.clear()
        self._outputs.clear()

    def numbers(self) -> Iterator[tuple[str, Numbers]]:
        """What was measured of each module."""
        for name, ((quantities, row), rows) in self._found.items():
            above = {"", name, *above_of(name)}
            shares = [share for owner, count, share in self._shares if count == rows and owner in above]
            if shares and quantities is not OF_ROWS:
                # What differs least says how many codes there can be.
                least = torch.stack([each.to(row) for each in shares]).amin()
                yield name, ((INPUTS, *quantities), torch.cat((least.view(1), row)))
            else:
                yield name, (quantities, row)

    def _is_taken(self, name: str, tensor: Tensor) -> bool:
        """Whether a module inside of this one put out the same and is measured in its place."""
        twin = next((other for other, each in self._outputs.items() if each() is tensor), None)
        if twin is None or twin in self._named:
            return twin is not None and name not in self._named
        if name not in self._named:
            self.learnt[name] = False
            return True
        for each in (self._outputs, self._found, self.flags):
            each.pop(twin, None)
        self.learnt[twin] = False
        return False

    def _measure(self, name: str, module: Module, tensor: Tensor, learning: bool) -> None:
        named = name in self._named
        codes = self._known.get(name, False) or (named and tensor.dtype is torch.bool)
        if (named or self._everywhere) and may_be_codes(tensor, learning):
            flag = are_codes(tensor)
            here = value_on_host(flag)
            if here is None:
                self.flags[name] = flag
            else:
                codes = self.learnt[name] = bool(here)
            self._outputs[name] = weakref.ref(tensor)
        if codes and tensor.dim() >= 2 and tensor.size(-1) >= 2:
            rows = spread_rows(tensor)
            if rows.size(0) >= 2:
                self._found[name] = self._of_codes(name, rows), rows.size(0)
        elif named and not codes and tensor.is_floating_point():
            nature = nature_of(module)
            axis = None if nature is None else axis_of(tensor, nature, {})
            axis = axis if axis is not None else (1 if tensor.dim() > 3 else -1)
            rows = spread_rows(tensor, axis) if tensor.dim() >= 2 else tensor.view(1, -1)
            if min(rows.shape) >= 2:
                self._found[name] = (OF_ROWS, describe_rows(rows)), rows.size(0)

    def _of_codes(self, name: str, rows: Tensor) -> Numbers:
        numbers = describe_codes(bits_of(rows))
        chain = [self._places[each] for each in (name, *above_of(name)) if each in self._places]
        temperature = temperature_of(chain, rows.device)
        if temperature is None:
            return OF_CODES, numbers
        return (*OF_CODES, TEMPERATURE), torch.cat((numbers, temperature.to(numbers.dtype).view(1)))

    def _compare(self, name: str, module: Module, given: Tensor) -> None:
        """How much of what came in differs: more codes than that cannot be told apart."""
        if isinstance(module, Embedding):
            self._share("", given, given.numel())
            return
        for other, ((quantities, _), rows) in self._found.items():
            if quantities is not OF_ROWS and (other == name or name in above_of(other)):
                self._share(name, given, rows)

    def _share(self, owner: str, given: Tensor, rows: int) -> None:
        share = share_that_differs(given, rows)
        if share is not None:
            self._shares.append((owner, rows, share))


def above_of(name: str) -> list[str]:
    """What a module stands in, the nearest first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
