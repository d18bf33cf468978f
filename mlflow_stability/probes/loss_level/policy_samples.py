"""Observes whether a training takes the log-probability of samples that its own model drew: a policy gradient.

In: calls of `sample` and `log_prob` of torch's distributions. Out: counts. Guarantees: results and exceptions are
torch's own; compiled code contains nothing of this package; no sample is kept alive; who never samples pays nothing.

A policy samples without a gradient and takes the log-probability of that very sample, at once with a gradient
(REINFORCE, actor-critic), or at once without and again later with one (PPO). A density model takes log-probabilities
of data, a VAE draws samples with a gradient (`rsample`), and who generates text trains on other tokens.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Beta, Categorical, Distribution, MultivariateNormal, Normal

from mlflow_stability.probes.hooks import HookHandles, torch_api
from mlflow_stability.probes.probe import Guard

SAMPLERS: tuple[type[Distribution], ...] = (Distribution, Bernoulli, Categorical, Normal)
"""The classes that have a `sample` of their own which others inherit or call."""
SCORERS: tuple[type[Distribution], ...] = (Bernoulli, Beta, Categorical, MultivariateNormal, Normal)
"""Those whose `log_prob` is taken of actions."""
MOST_KEPT = 64
"""Number of distributions whose last sample is remembered: an environment step has a handful."""
MOST_COMPARED = 4096
"""Samples of more values are recognised by their identity alone."""


class PolicySamples:
    """What is known about the samples of this process."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.with_gradient = 0
        """Number of log-probabilities, with a gradient, of a sample of the same distribution."""
        self.later = 0
        """Number of those with a gradient of other values, in a class whose samples were scored without one."""
        self._scored: set[type] = set()
        """The classes of which, without a gradient, the log-probability of a sample was taken."""
        self._last: OrderedDict[int, tuple[weakref.ref[Any], weakref.ref[Tensor]]] = OrderedDict()
        """By the identity of a distribution: itself and its last sample."""

    def install(self, handles: HookHandles, guard: Guard) -> None:
        """Observe the classes, until the handles are removed."""
        self._begin()
        drawn, taken = guard("samples of policies", self._drawn), guard("samples of policies", self._taken)
        for owner in SAMPLERS:
            handles.replace(owner, "sample", _observed(vars(owner)["sample"], drawn))
        for owner in SCORERS:
            handles.replace(owner, "log_prob", _observed(vars(owner)["log_prob"], taken))

    def _drawn(self, distribution: Distribution, sample: Any, _args: tuple[Any, ...]) -> None:
        if isinstance(sample, Tensor) and not sample.requires_grad:
            key = id(distribution)
            self._last[key] = weakref.ref(distribution), weakref.ref(sample)
            self._last.move_to_end(key)
            if len(self._last) > MOST_KEPT:
                self._last.popitem(last=False)

    def _taken(self, distribution: Distribution, result: Any, args: tuple[Any, ...]) -> None:
        value = args[0] if args else None
        if not isinstance(value, Tensor) or value.requires_grad or not isinstance(result, Tensor):
            return
        kind, own = type(distribution), self._is_own_sample(distribution, value)
        if result.requires_grad:
            self.with_gradient += own
            self.later += not own and kind in self._scored
        elif own and not torch.is_grad_enabled():
            self._scored.add(kind)

    def _is_own_sample(self, distribution: Distribution, value: Tensor) -> bool:
        known = self._last.get(id(distribution))
        if known is None or known[0]() is not distribution:
            return False
        sample = known[1]()
        if sample is None:
            return False
        return value is sample or value._base is sample or _is_equal(value, sample)


def _is_equal(value: Tensor, sample: Tensor) -> bool:
    """Whether both have the same values; only where no device has to be waited for."""
    if not (type(value) is type(sample) is Tensor and value.is_cpu and sample.is_cpu):
        return False
    if value.numel() != sample.numel() or value.numel() > MOST_COMPARED:
        return False
    if torch_api.is_functorch_wrapped_tensor(value) or torch_api.is_functorch_wrapped_tensor(sample):
        return False
    return torch.equal(value.reshape(-1).to(sample.dtype), sample.reshape(-1))


def _observed(original: Callable[..., Any], told: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, which tells what it returned."""

    @functools.wraps(original)
    def observed(self: Distribution, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            told(self, result, args or tuple(kwargs.values()))
        return result

    return observed


POLICY_SAMPLES = PolicySamples()
"""Of this process: torch's classes are there once."""
