"""Measures representations: of the modules that were named, and of those that put out sparse binary codes.

Codes are looked for in the first two measured passes of a model; on an accelerator what was found out in one pass is
acted upon in the next. Of modules that put out the same tensor the named one is measured, else the innermost.
Guarantees: no device is waited for; nothing of a pass is kept but numbers.

The effective rank is exp of the entropy of the singular values' shares (Roy and Vetterli, 2007; RankMe,
arXiv:2210.02885), the stable rank the sum of their squares over the largest square. On the CPU they come from the
eigenvalues x of a Gram matrix. Torch waits for an accelerator when it computes those; there the sums over sqrt(x), and
over sqrt(x) ln(x), are integrals over resolvents, which are traces of inverses: sqrt(x) = 1/pi ∫ e^(u/2) x / (x + e^u)
du, and with one more factor u under the integral sqrt(x) ln(x).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Module

from mlflow_stability.probes.hooks.thread_state import untracked
from mlflow_stability.probes.inside.activation_statistics import axis_of, nature_of, output_tensor
from mlflow_stability.probes.inside.sparse_codes import QUANTITIES as OF_CODES
from mlflow_stability.probes.inside.sparse_codes import (
    are_codes,
    bits_of,
    describe_codes,
    may_be_codes,
    share_that_differs,
    spread_rows,
    temperature_of,
)
from mlflow_stability.probes.probe import Guard, ProbeContext, ProbeFactory, SampledForwardProbe
from mlflow_stability.probes.step.readback import Block, Readback, signals_at, value_on_host
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType("sdr_input_ratio", "share of inputs that differ"),
    SignalType("sdr_temperature", "parameter or buffer of that name"),
    SignalType(
        "effective_rank",
        "directions in which outputs differ, by entropy; of `representations`, every `sdr_check_interval`",
        left_out="nan",
    ),
    SignalType("stable_rank", "in how many directions it differs, by norms", left_out="nan"),
    SignalType("mean_cosine", "how alike what it puts out is: the mean cosine of two rows", left_out="nan"),
    topic="representations",
    interval="forward pass",
)

INPUTS, TEMPERATURE = "sdr_input_ratio", "sdr_temperature"
Numbers = tuple[tuple[str, ...], Tensor]  # quantities, and a row of values


class RepresentationPass:
    def __init__(
        self, places: Mapping[str, Module], named: Set[str], codes: Mapping[str, bool], everywhere: bool
    ) -> None:
        self.learnt: dict[str, bool] = {}  # whether a module puts out codes
        self.flags: dict[str, Tensor] = {}  # the same, where it is known on the device only
        self._places = places
        self._named = named
        self._codes = codes
        self._everywhere = everywhere
        self._names = {id(module): name for name, module in places.items()}
        self._seen: set[str] = set()
        self._outputs: dict[str, weakref.ref[Tensor]] = {}  # of modules that are measured or may be
        self._numbers: dict[str, tuple[Numbers, int]] = {}  # by module: numbers, and the number of rows
        # By module: number of rows of its input, and the share that differs; of embeddings without a name.
        self._shares: list[tuple[str, int, Tensor]] = []

    def wanted(self) -> Iterator[Module]:
        measured = self._named | {name for name, codes in self._codes.items() if codes and name in self._places}
        around = {above for name in measured for above in above_of(name)}
        for name, module in self._places.items():
            inputs = name in around or (bool(measured) and isinstance(module, Embedding))
            if self._everywhere or name in measured or inputs:
                yield module

    def take(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        """Run after each call of such a module; the first call counts."""
        name = self._names.get(id(module))
        if name is None or name in self._seen:
            return
        self._seen.add(name)
        learning = torch.is_grad_enabled()
        with untracked():
            tensor, inputs = output_tensor(output), output_tensor(args)
            if tensor is not None and not self._is_taken(name, tensor):
                self._measure(name, module, tensor, learning)
            if inputs is not None:
                self._compare(name, module, inputs)

    def over(self) -> None:
        """End the pass and keep only numbers."""
        self._places = {}
        self._names.clear()
        self._outputs.clear()

    def numbers(self) -> Iterator[tuple[str, Numbers]]:
        for name, ((quantities, row), rows) in self._numbers.items():
            above = {"", name, *above_of(name)}
            shares = [share for owner, count, share in self._shares if count == rows and owner in above]
            if shares and quantities is not OF_ROWS:
                # The least share limits the number of different codes.
                least = torch.stack([share.to(row) for share in shares]).amin()
                yield name, ((INPUTS, *quantities), torch.cat((least.view(1), row)))
            else:
                yield name, (quantities, row)

    # Whether a module inside this one returned the same tensor and is measured in its place.
    def _is_taken(self, name: str, tensor: Tensor) -> bool:
        twin = next((other for other, output in self._outputs.items() if output() is tensor), None)
        if twin is None or twin in self._named:
            return twin is not None and name not in self._named
        if name not in self._named:
            self.learnt[name] = False
            return True
        self._outputs.pop(twin, None)
        self._numbers.pop(twin, None)
        self.flags.pop(twin, None)
        self.learnt[twin] = False
        return False

    def _measure(self, name: str, module: Module, tensor: Tensor, learning: bool) -> None:
        named = name in self._named
        codes = self._codes.get(name, False) or (named and tensor.dtype is torch.bool)
        if (named or self._everywhere) and may_be_codes(tensor, learning):
            flag = are_codes(tensor)
            value = value_on_host(flag)
            if value is None:
                self.flags[name] = flag
            else:
                codes = self.learnt[name] = bool(value)
            self._outputs[name] = weakref.ref(tensor)
        if codes and tensor.dim() >= 2 and tensor.size(-1) >= 2:
            rows = spread_rows(tensor)
            if rows.size(0) >= 2:
                self._numbers[name] = self._of_codes(name, rows), rows.size(0)
        elif named and not codes and tensor.is_floating_point():
            nature = nature_of(module)
            axis = None if nature is None else axis_of(tensor, nature, {})
            axis = axis if axis is not None else (1 if tensor.dim() > 3 else -1)
            rows = spread_rows(tensor, axis) if tensor.dim() >= 2 else tensor.view(1, -1)
            if min(rows.shape) >= 2:
                self._numbers[name] = (OF_ROWS, describe_rows(rows)), rows.size(0)

    def _of_codes(self, name: str, rows: Tensor) -> Numbers:
        numbers = describe_codes(bits_of(rows))
        chain = [self._places[place] for place in (name, *above_of(name)) if place in self._places]
        temperature = temperature_of(chain, rows.device)
        if temperature is None:
            return OF_CODES, numbers
        return (*OF_CODES, TEMPERATURE), torch.cat((numbers, temperature.to(numbers.dtype).view(1)))

    def _compare(self, name: str, module: Module, inputs: Tensor) -> None:
        if isinstance(module, Embedding):
            self._share("", inputs, inputs.numel())
            return
        for other, ((quantities, _), rows) in self._numbers.items():
            if quantities is not OF_ROWS and (other == name or name in above_of(other)):
                self._share(name, inputs, rows)

    def _share(self, owner: str, inputs: Tensor, rows: int) -> None:
        share = share_that_differs(inputs, rows)
        if share is not None:
            self._shares.append((owner, rows, share))


def above_of(name: str) -> list[str]:
    """Return the names of the modules around a module, the nearest first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


SEARCHED_PASSES = 2  # in which codes are looked for everywhere
MAX_NAMES = 12
MAX_UNNAMED = 16  # modules with codes


class RepresentationProbe(SampledForwardProbe):
    part = "representations"

    def __init__(
        self,
        guard: Guard,
        names: Sequence[str] = (),
        every: int = 100,
        models: Callable[[], Sequence[Module]] = list,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(guard, every, models)
        self.names = tuple(names)  # of modules, as the user gave them
        self.met: set[str] = set()  # names for which a model had a module
        self._say = say
        self._outermost: dict[str, None] = {}  # outermost modules of the models that were measured
        self._readback = Readback()
        self._passes: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._codes: dict[str, bool] = {}  # whether a module puts out codes
        self._pass: RepresentationPass | None = None
        self._ended: list[RepresentationPass] = []  # passes of this capture

    def open(self, root: Module, _step: int, alive: Callable[[], bool]) -> None:
        self._readback.deliver()
        passes = self._passes[root] = self._passes.get(root, 0) + 1
        places = dict(self._modules.inside(root))
        named = self._named_modules(places)
        if self.names:
            self._outermost |= dict.fromkeys(name for name in places if "." not in name)
        hooks = self.observe(alive)
        self._pass = RepresentationPass(places, named, self._codes, passes <= SEARCHED_PASSES)
        for module in self._pass.wanted():
            hooks.after(module, self._pass.take)

    def close(self, whole: bool) -> None:
        self.stop()
        if self._pass is not None:
            self._pass.over()
            if whole:
                self._ended.append(self._pass)
        self._pass = None
        if whole and max(self._passes.values(), default=0) >= SEARCHED_PASSES:  # every model was seen
            self._emit_missing()

    def blocks(self) -> Sequence[Block]:
        ended, self._ended = self._ended, []
        with untracked():
            for model_pass in ended:
                self._learn(model_pass)
            measured = [(name, *numbers) for model_pass in ended for name, numbers in model_pass.numbers()]
        return [Block(signals_at(quantities, name), row) for name, quantities, row in measured]

    def finish(self) -> None:
        self._ended.clear()
        self._emit_missing()

    def _emit_missing(self) -> None:
        missing = [name for name in self.names if name not in self.met]
        self.names = tuple(name for name in self.names if name in self.met)
        if missing and self._outermost:
            self._say(
                f"representations: no trained module is called {' or '.join(map(repr, missing))}, so it is "
                f"not measured. Module names: {', '.join(list(self._outermost)[:MAX_NAMES])}; nested modules may "
                "be named too."
            )

    def _named_modules(self, places: Mapping[str, Module]) -> set[str]:
        """Return the modules of the given names, else the outermost modules whose names end with them."""
        modules: set[str] = set()
        for name in self.names:
            ends = [place for place in places if place == name or place.endswith(f".{name}")]
            highest = min((end.count(".") for end in ends), default=0)
            modules |= {name} if name in places else {end for end in ends if end.count(".") == highest}
            self.met |= {name} if ends else set()
        return modules

    def _learn(self, model_pass: RepresentationPass) -> None:
        names = tuple(model_pass.flags)
        self._note(model_pass.learnt)
        if names:
            flags = [model_pass.flags[name] for name in names]
            self._readback.fetch(flags, lambda values, _: self._note(dict(zip(names, map(bool, values), strict=True))))

    def _note(self, learnt: Mapping[str, bool]) -> None:
        for name, codes in learnt.items():
            if not codes or sum(self._codes.values()) < MAX_UNNAMED + len(self.names):
                self._codes[name] = codes


def _probe(context: ProbeContext) -> RepresentationProbe | None:
    names, every = context.settings.representations, context.settings.sdr_check_interval
    return RepresentationProbe(context.guard, names, every, context.models, context.say) if every else None


PROBES: tuple[ProbeFactory, ...] = (_probe,)


OF_ROWS = ("effective_rank", "stable_rank", "mean_cosine")
MAX_ROWS = 2048
MAX_GRAM_SIDE = 512
MAX_COLUMNS = 8192
SQUARINGS = 16  # of a matrix, until only its largest eigenvalue is left, to 0.01 %
# Values of u at which the integrals are summed; they are then right to 0.1 %.
NODES = tuple(range(-30, 33))
INVERTED_AT_ONCE = 8


def describe_rows(rows: Tensor) -> Tensor:
    """Return the quantities of a matrix with at least two rows, one for each representation."""
    taken = _taken(rows)
    lengths = torch.linalg.vector_norm(taken, dim=1, keepdim=True)
    there = (lengths > 0).sum()
    directions = torch.where(lengths > 0, taken / lengths, 0.0).sum(0)
    cosine = (directions.square().sum() - there) / (there * (there - 1))
    gram = taken.T @ taken if taken.size(0) > taken.size(1) else taken @ taken.T
    shares = gram / gram.trace()
    ranks = ranks_by_eigenvalues if gram.is_cpu else ranks_by_resolvents
    return torch.stack((*ranks(torch.nan_to_num(shares, 0.0)), cosine))


def ranks_by_eigenvalues(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return effective and stable rank of a Gram matrix with trace 1; NaN for one of zeros."""
    squares = torch.linalg.eigvalsh(shares).clamp_min_(0.0)
    values = squares.sqrt()
    portions = values / values.sum()
    return torch.exp(-torch.special.xlogy(portions, portions).sum()), squares.sum() / squares.amax()


def ranks_by_resolvents(shares: Tensor) -> tuple[Tensor, Tensor]:
    side = len(shares)
    identity = torch.eye(side, dtype=shares.dtype, device=shares.device)
    roots = shares.new_zeros(())
    weighted = shares.new_zeros(())
    for begin in range(0, len(NODES), INVERTED_AT_ONCE):
        some = NODES[begin : begin + INVERTED_AT_ONCE]
        factors, _ = torch.linalg.cholesky_ex(torch.stack([shares + math.exp(node) * identity for node in some]))
        inverses = torch.linalg.solve_triangular(factors, identity.expand(len(some), -1, -1), upper=False)
        traces = inverses.square().sum((1, 2)).unbind()
        for node, trace in zip(some, traces, strict=True):
            term = math.exp(node / 2) / math.pi * (side - math.exp(node) * trace)
            roots = roots + term
            weighted = weighted + node * term
    # With s the singular values, sums of s and of s ln s: the entropy of their shares follows from both.
    entropy = roots.log() - weighted / 2 / roots
    return torch.exp(entropy), shares.trace() / _largest(shares)


# The largest eigenvalue: each squaring leaves less of all others.
def _largest(shares: Tensor) -> Tensor:
    logarithm = shares.new_zeros(())
    power = shares
    for number in range(1, SQUARINGS + 1):
        power = power @ power
        trace = power.trace()
        logarithm = logarithm + trace.log() / 2**number
        power = power / trace
    return logarithm.exp()


def _taken(rows: Tensor) -> Tensor:
    columns = -(-rows.size(1) // MAX_COLUMNS)
    rows = rows[:, ::columns]
    most = MAX_ROWS if rows.size(1) <= MAX_GRAM_SIDE else MAX_GRAM_SIDE
    taken = rows[:: -(-rows.size(0) // most)].to(torch.float64)
    return torch.where(torch.isfinite(taken).all(1, keepdim=True), taken, 0.0)
