"""Says whether a training computed in fp16, whose numbers end at 65504.

In: a run. Out: yes, no, or that it cannot be known. Guarantees: bf16 is no fp16, though both are half as wide; a run
whose parameters ask for another type does not compute in fp16 unless something else says so.
"""

from __future__ import annotations

import re

import numpy as np

from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.run import RunHistory

FP16 = re.compile(r"(?<![a-z])(?:fp16|float16|half|16-mixed|16-true)\b")
OTHER = re.compile(r"^(?:no|(?:32|64|bf16)(?:-true|-mixed)?|(?:torch\.)?(?:fp32|float32|tf32|bfloat16|float64))$")
"""What else can be asked for."""
SAID_BY = ("stability.autocast", "stability.parameter_types")
"""Where a recording says in which types it computes; the second is always there."""
ASKED_FOR = ("precision", "mixed_precision", "dtype", "torch_dtype", "amp_dtype")
"""Parameters, without what is before the last dot or slash, by which frameworks and scripts ask for it."""


def in_half_precision(history: RunHistory) -> bool | None:
    """Whether anything was computed in fp16; None: the run does not say."""
    params = {key.lower(): value.lower() for key, value in history.params.items()}
    if any(FP16.search(params.get(key, "")) for key in SAID_BY) or any(map(_asks, params, params.values())):
        return True
    if any(_scaled(metric.series.values) for metric in history.of("loss_scale")):
        return True
    if any(_names_half(event.facts) for event in history.events or ()):
        return True
    return False if SAID_BY[1] in params or any(map(_asks_for_another, params, params.values())) else None


def _names_half(facts: Facts) -> bool:
    return isinstance(facts, NanOriginFacts) and any(
        tensor.dtype == "float16" for tensor in (*facts.inputs, facts.output) if tensor is not None
    )


def _asks(key: str, value: str) -> bool:
    name = re.split(r"[./]", key)[-1]
    if name in ("fp16", "use_fp16"):
        return value in ("true", "1", "yes")
    return name in ASKED_FOR and (bool(FP16.search(value)) or value == "16")


def _asks_for_another(key: str, value: str) -> bool:
    name = re.split(r"[./]", key)[-1]
    if name in ("fp16", "use_fp16"):
        return value in ("false", "0", "no")
    return name in ASKED_FOR and OTHER.search(value) is not None


def _scaled(scale: object) -> bool:
    values = np.asarray(scale, np.float64)
    return bool((values[np.isfinite(values)] > 1.0).any())
