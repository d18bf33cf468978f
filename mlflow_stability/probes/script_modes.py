"""Says which mode of the script would see what we run: a counter of operations, say, would count it.

In: the modes that are on in this thread. Out: the class of one; or nothing. Promised: a default device is none, for it
only says where new tensors go, and modes of ours are none either.
"""

from __future__ import annotations

from typing import Any

from mlflow_stability.probes import torch_api
from mlflow_stability.probes.opaque_kinds import OURS


def mode_of_script() -> str:
    """The class of a mode that is on; empty: there is none."""
    modes: list[Any] = [*torch_api.function_mode_stack(), *torch_api.dispatch_mode_stack()]
    kinds = [type(each) for each in modes if not isinstance(each, torch_api.DeviceContext)]
    return next((each.__name__ for each in kinds if str(each.__module__).partition(".")[0] != OURS), "")
