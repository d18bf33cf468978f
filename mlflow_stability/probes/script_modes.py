"""Says which mode of the script would see what we run: a counter of operations, say, would count it.

In: the modes that are on in this thread. Out: the class of one; or nothing. Promised: a default device is none, for it
only says where new tensors go, and modes of ours are none either.
"""

from __future__ import annotations

from typing import Any

from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mlflow_stability.probes.opaque_kinds import OURS


def mode_of_script() -> str:
    """The class of a mode that is on; empty: there is none."""
    modes: list[Any] = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]  # type: ignore[no-untyped-call]
    kinds = [type(each) for each in modes if not isinstance(each, DeviceContext)]
    return next((each.__name__ for each in kinds if str(each.__module__).partition(".")[0] != OURS), "")
