"""What a test may change in the libraries: torch's modes and hooks, numpy, matplotlib, MLflow's run, our own session.

Random generators are no parts: `seed_all` gives every test the same ones. What torch raises at its first compilation
is put back by `undo_what_libraries_do_once`, and not held against the test that happened to be first.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from plugins.process_state import Part, Snapshot

COMPILER_RECURSION_LIMIT = 2000
"""What `torch._inductor.compile_fx` raises the limit to at each compilation, and leaves it at."""
PATCHED = {
    "torch.autograd": ("backward", "grad"),
    "torch": ("Tensor.backward", "nn.Module.__call__", "nn.Module.zero_grad", "optim.Optimizer.zero_grad"),
    "torch.amp": ("GradScaler.scale", "GradScaler.step", "GradScaler.unscale_", "GradScaler.update"),
    "torch.nn.utils": ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"),
    "torch.nn.functional": ("scaled_dot_product_attention", "softmax"),
}


def undo_what_libraries_do_once(before: Snapshot) -> None:
    """Undo what a foreign library changes at its first use, whichever test that is in."""
    if "torch._inductor.compile_fx" in sys.modules and sys.getrecursionlimit() == COMPILER_RECURSION_LIMIT:
        (limit,) = (value for part, value in before.items() if part.name == "the recursion limit")
        sys.setrecursionlimit(limit)
    if getattr(sys.excepthook, "__module__", "") == "torch.distributed.distributed_c10d":
        (hooks,) = (value for part, value in before.items() if part.name == "hooks of the interpreter")
        sys.excepthook = hooks["sys.excepthook"]  # a process group sets one and leaves it when it is destroyed


def seed_all() -> None:
    """The same random numbers for a test, whichever tests came before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        # `torch.manual_seed` would also keep, with a traceback, what is to be done once there is an accelerator.
        torch: Any = sys.modules["torch"]
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


def _torch(*names: str) -> Callable[[], dict[str, Any]]:
    """What these functions of torch return, or these attributes are."""

    def read() -> dict[str, Any]:
        values = {}
        for name in names:
            value: Any = sys.modules["torch"]
            for word in name.split("."):
                value = getattr(value, word)
            values[name] = value() if callable(value) else value
        return values

    return read


def _put_modes_back(before: dict[str, Any]) -> None:
    torch: Any = sys.modules["torch"]
    torch.set_default_dtype(before["get_default_dtype"])
    if torch.get_default_device() != before["get_default_device"]:
        torch.set_default_device(None)  # anything else is a mode: set only where there was one
        if before["_C._len_torch_function_stack"]:
            torch.set_default_device(before["get_default_device"])
    while torch._C._len_torch_function_stack() > before["_C._len_torch_function_stack"]:
        torch.overrides._pop_mode()
    torch.set_grad_enabled(before["is_grad_enabled"])
    torch.use_deterministic_algorithms(
        before["are_deterministic_algorithms_enabled"],
        warn_only=before["is_deterministic_algorithms_warn_only_enabled"],
    )
    torch.set_anomaly_enabled(before["is_anomaly_enabled"], before["is_anomaly_check_nan_enabled"])
    torch.set_warn_always(before["is_warn_always_enabled"])
    torch.set_float32_matmul_precision(before["get_float32_matmul_precision"])
    torch.set_num_threads(before["get_num_threads"])
    torch.set_autocast_cache_enabled(before["is_autocast_cache_enabled"])
    for backend in (torch.backends.cudnn, torch.backends.mkldnn):
        backend.enabled = before[f"backends.{backend.__name__.rpartition('.')[2]}.enabled"]
    torch.backends.cudnn.benchmark = before["backends.cudnn.benchmark"]
    torch.backends.cudnn.deterministic = before["backends.cudnn.deterministic"]


MODES = (
    "get_default_dtype",
    "get_default_device",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "are_deterministic_algorithms_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_anomaly_enabled",
    "is_anomaly_check_nan_enabled",
    "is_warn_always_enabled",
    "get_float32_matmul_precision",
    "get_num_threads",
    "is_autocast_cache_enabled",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.mkldnn.enabled",
    "_C._len_torch_function_stack",
    "_C._len_torch_dispatch_stack",
    "_C._autograd._saved_tensors_hooks_is_enabled",
    "distributed.is_initialized",
)


def _autocast() -> dict[str, Any]:
    torch: Any = sys.modules["torch"]
    return {name: (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in ("cpu", "cuda")}


def _put_autocast_back(before: dict[str, Any]) -> None:
    torch: Any = sys.modules["torch"]
    for device, (enabled, dtype) in before.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def _hooks() -> dict[str, Any]:
    """Hooks for all modules and optimizers, by the registry that holds them."""
    return {f"{place}.{name}": dict(registry) for place, name, registry in _registries()}


def _registries() -> list[tuple[str, str, dict[int, Any]]]:
    return [
        (place, name, result)
        for place in ("torch.nn.modules.module", "torch.optim.optimizer")
        for name, result in vars(sys.modules[place]).items()
        if name.startswith("_global_") and isinstance(result, dict)
    ]


def _put_hooks_back(before: dict[str, dict[int, Any]]) -> None:
    for place, name, registry in _registries():
        registry.clear()
        registry.update(before[f"{place}.{name}"])


def _functions() -> dict[str, Any]:
    """What is called under these names: a patch that stays is another function."""
    return {f"{module}.{name}": getattr(*_owner(module, name)) for module, names in PATCHED.items() for name in names}


def _owner(module: str, name: str) -> tuple[Any, str]:
    *path, last = name.split(".")
    owner: Any = sys.modules[module]
    for item in path:
        owner = getattr(owner, item)
    return owner, last


def _put_functions_back(before: dict[str, Any]) -> None:
    for module, names in PATCHED.items():
        for name in names:
            setattr(*_owner(module, name), before[f"{module}.{name}"])


def _mlflow() -> dict[str, Any]:
    fluent = sys.modules["mlflow.tracking.fluent"]
    service = sys.modules["mlflow.tracking._tracking_service.utils"]
    return {
        "tracking URI": vars(service)["_tracking_uri"],
        "active runs": [item.info.run_id for item in vars(fluent)["_active_run_stack"].get()],
        "active experiment": vars(fluent)["_active_experiment_id"],
    }


def _put_mlflow_back(before: dict[str, Any]) -> None:
    mlflow = import_module("mlflow")
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before["tracking URI"])
    vars(sys.modules["mlflow.tracking.fluent"])["_active_experiment_id"] = before["active experiment"]


def _session() -> object:
    return vars(sys.modules["mlflow_stability.session.autolog"])["_current"]


def _put_figures_back(before: list[int]) -> None:
    for number in sys.modules["matplotlib.pyplot"].get_fignums():
        if number not in before:
            sys.modules["matplotlib.pyplot"].close(number)


LIBRARIES = (
    # First of all: it takes its hooks and patches off.
    Part(
        "the session of mlflow_stability",
        _session,
        lambda before: import_module("mlflow_stability").autolog(disable=True),
        "mlflow_stability.session.autolog",
    ),
    Part("modes of torch", _torch(*MODES), _put_modes_back, "torch"),
    Part("autocast", _autocast, _put_autocast_back, "torch"),
    Part("global hooks of torch", _hooks, _put_hooks_back, "torch"),
    Part("functions of torch", _functions, _put_functions_back, "torch"),
    Part("MLflow", _mlflow, _put_mlflow_back, "mlflow.tracking.fluent"),
    Part(
        "numpy's handling of errors",
        lambda: sys.modules["numpy"].geterr(),
        lambda before: sys.modules["numpy"].seterr(**before),
        "numpy",
    ),
    Part(
        "matplotlib's settings",
        lambda: dict(dict.items(sys.modules["matplotlib"].rcParams)),
        lambda before: dict.update(sys.modules["matplotlib"].rcParams, before),
        "matplotlib",
    ),
    Part(
        "open figures",
        lambda: sys.modules["matplotlib.pyplot"].get_fignums(),
        _put_figures_back,
        "matplotlib.pyplot",
    ),
)
