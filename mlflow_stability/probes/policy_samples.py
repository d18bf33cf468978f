"""Observes whether a training takes the log-probability of samples that its own model drew: a policy gradient.

A policy samples without a gradient and takes the log-probability of that very sample, at once with a gradient
(REINFORCE, actor-critic), or at once and again later with one (PPO). A density model takes log-probabilities of data.
Guarantees: results and exceptions are torch's own; compiled code contains nothing of this package; no sample is kept
alive; a script that never samples pays nothing.
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

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.guarded_hooks import HookHandles
from mlflow_stability.probes.probe import Guard

# Classes with a `sample` of their own that others inherit or call.
SAMPLERS: tuple[type[Distribution], ...] = (Distribution, Bernoulli, Categorical, Normal)
# Classes whose `log_prob` is taken of actions.
SCORERS: tuple[type[Distribution], ...] = (Bernoulli, Beta, Categorical, MultivariateNormal, Normal)
MAX_DISTRIBUTIONS = 64  # whose last sample is remembered: an environment step has a few
MAX_COMPARED_VALUES = 4096  # of a sample; larger ones are compared by identity


class PolicySamples:
    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.with_gradient = 0  # log-probabilities with a gradient of a sample of the same distribution
        # Log-probabilities with a gradient of other values, in a class whose samples were scored before.
        self.later = 0
        # Samples of distributions whose parameters have a gradient: a policy may score them without `log_prob`.
        self.of_model = 0
        # Classes in which log-probabilities of samples were taken.
        self._scored: set[type] = set()
        # By identity of a distribution: itself and its last sample.
        self._last: OrderedDict[int, tuple[weakref.ref[Any], weakref.ref[Tensor]]] = OrderedDict()

    def install(self, handles: HookHandles, guard: Guard) -> None:
        """Observe the classes until the handles are removed."""
        self._begin()
        drawn, scored = guard("samples of policies", self._add_sample), guard("samples of policies", self._add_score)
        for owner in SAMPLERS:
            handles.replace(owner, "sample", _observed(vars(owner)["sample"], drawn))
        for owner in SCORERS:
            handles.replace(owner, "log_prob", _observed(vars(owner)["log_prob"], scored))

    def _add_sample(self, distribution: Distribution, sample: Any, _args: tuple[Any, ...]) -> None:
        if isinstance(sample, Tensor) and not sample.requires_grad:
            parameters = vars(distribution).values()
            self.of_model += any(isinstance(value, Tensor) and value.requires_grad for value in parameters)
            key = id(distribution)
            self._last[key] = weakref.ref(distribution), weakref.ref(sample)
            self._last.move_to_end(key)
            if len(self._last) > MAX_DISTRIBUTIONS:
                self._last.popitem(last=False)

    def _add_score(self, distribution: Distribution, result: Any, args: tuple[Any, ...]) -> None:
        value = args[0] if args else None
        if not isinstance(value, Tensor) or value.requires_grad or not isinstance(result, Tensor):
            return
        kind, own = type(distribution), self._is_own_sample(distribution, value)
        if result.requires_grad:
            self.with_gradient += own
            self.later += not own and kind in self._scored
            if own:
                self._scored.add(kind)
        elif own and not torch.is_grad_enabled():
            self._scored.add(kind)

    def _is_own_sample(self, distribution: Distribution, value: Tensor) -> bool:
        last = self._last.get(id(distribution))
        if last is None or last[0]() is not distribution:
            return False
        sample = last[1]()
        if sample is None:
            return False
        return value is sample or value._base is sample or _is_equal(value, sample)


# False where a device would have to be waited for.
def _is_equal(value: Tensor, sample: Tensor) -> bool:
    if not (type(value) is type(sample) is Tensor and value.is_cpu and sample.is_cpu):
        return False
    if value.numel() != sample.numel() or value.numel() > MAX_COMPARED_VALUES:
        return False
    if torch_api.is_functorch_wrapped_tensor(value) or torch_api.is_functorch_wrapped_tensor(sample):
        return False
    return torch.equal(value.reshape(-1).to(sample.dtype), sample.reshape(-1))


def _observed(original: Callable[..., Any], observe: Callable[..., Any]) -> Callable[..., Any]:

    @functools.wraps(original)
    def observed(self: Distribution, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            observe(self, result, args or tuple(kwargs.values()))
        return result

    return observed


POLICY_SAMPLES = PolicySamples()
