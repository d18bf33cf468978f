"""Every private symbol of torch that this package uses, and every one that it patches: looked up here and nowhere else.

They are attributes of this module, such as `torch_api.foreach_norm`. Guarantees: a symbol is looked up when it is used
first, and once; one that torch lacks has a stand-in, or raises `TorchLacksError`, at which the part of us that needs it
is switched off and the training goes on.

The oldest torch that has them all is 2.6: before it, clipping took its norm inside `clip_grad_norm_`, where it could
not be seen, and there was no `torch.accelerator`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from mlflow_stability.errors import TorchLacksError

OLDEST_TORCH = "2.6"
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Symbol:
    where: str  # as `module:name`
    lost: str  # what is off where torch lacks it
    instead: Any = None  # stand-in, if there is one


def _one_by_one(name: str) -> Callable[..., list[Any]]:
    """Return a stand-in for `torch._foreach_<name>` that goes tensor by tensor."""

    def run(tensors: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        return [
            _on_one(name, tensor, *(arg[at] if isinstance(arg, list | tuple) else arg for arg in args), **kwargs)
            for at, tensor in enumerate(tensors)
        ]

    return run


def _on_one(name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if name == "norm":
        order, dtype = (*args, None, None)[:2]
        return torch.linalg.vector_norm(tensor, 2 if order is None else order, dtype=dtype)
    if name in ("addcmul_", "addcdiv_") and len(args) == 3:
        return getattr(tensor, name)(*args[:2], value=args[2])
    if name == "maximum_":
        return tensor.copy_(torch.maximum(tensor, args[0]))
    return getattr(tensor, name)(*args, **kwargs)


def _side_by_side(tensors: Sequence[Any]) -> Any:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _is_tracing() -> bool:
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


class _NoMode:
    def __init__(self) -> None:
        need("TorchDispatchMode")


_FOREACH = (
    *("add_", "addcdiv_", "addcmul_", "clamp_min_", "copy_", "div_", "lerp_", "maximum_", "minimum", "mul", "mul_"),
    *("neg", "norm", "reciprocal_", "sqrt", "sqrt_", "sub_", "zero_"),
)
_SLOWER = "batched norms and copies (slower, one tensor at a time)"
_INSIDE = "activations, attention, representations and other measurements inside a forward pass"
_CALLS = "forward passes: throughput, batches, and measurements inside a forward pass"
_ATTENTION = "attention"
_FLOPS = "FLOPs and MFU"
_AGAIN = "measurements of compiled models, and the second run of a broken batch"
_ORIGIN = "the operation that made the first NaN"
_COPIES = "update norms and AdamW RMS"
_NORM = "the gradient norm before clipping"
_LIMIT = "the gradient clipping threshold"
_COMMUNICATION = "the communication time of DistributedDataParallel"
_SHARDED = "the communication time of fully_shard"
_FLAT = "the communication time of FullyShardedDataParallel"
_COMPILED = "measurements inside forward passes where torch's compiler is loaded"
_COMPILED_STEP = "optimizer steps in compiled code"

SYMBOLS: dict[str, Symbol] = {
    **{f"foreach_{name}": Symbol(f"torch:_foreach_{name}", _SLOWER, _one_by_one(name)) for name in _FOREACH},
    # of modules
    "module_call": Symbol("torch.nn:Module._wrapped_call_impl", _CALLS),
    "is_fx_symbolic_tracing": Symbol("torch.fx._symbolic_trace:is_fx_symbolic_tracing", "nothing", lambda: False),
    # of steps
    "profile_hook_step": Symbol(
        "torch.optim.optimizer:Optimizer.profile_hook_step", "detection of nested optimizer steps", lambda step: step
    ),
    "backward": Symbol("torch.autograd:backward", "the loss"),
    "zero_grad_of_optimizer": Symbol("torch.optim.optimizer:Optimizer.zero_grad", "discarded gradients"),
    "zero_grad_of_module": Symbol("torch.nn:Module.zero_grad", "discarded gradients"),
    "graph_replay": Symbol("torch.cuda:CUDAGraph.replay", "the count of replayed CUDA graphs"),
    "get_total_norm": Symbol("torch.nn.utils.clip_grad:_get_total_norm", _NORM),
    "public_get_total_norm": Symbol("torch.nn.utils:get_total_norm", _NORM),
    "clip_grads_with_norm_": Symbol("torch.nn.utils.clip_grad:_clip_grads_with_norm_", _LIMIT),
    "public_clip_grads_with_norm_": Symbol("torch.nn.utils:clip_grads_with_norm_", _LIMIT),
    "clip_grad_value_": Symbol("torch.nn.utils.clip_grad:clip_grad_value_", _LIMIT),
    "public_clip_grad_value_": Symbol("torch.nn.utils:clip_grad_value_", _LIMIT),
    "scale": Symbol("torch.amp:GradScaler.scale", "the loss before scaling"),
    "unscale_": Symbol("torch.amp:GradScaler.unscale_", "unscaled gradients"),
    "scaler_step": Symbol("torch.amp:GradScaler.step", "steps that a loss scaler skipped"),
    "join_begins": Symbol("torch.distributed.algorithms.join:Join.__enter__", "detection of uneven inputs"),
    "join_ends": Symbol("torch.distributed.algorithms.join:Join.__exit__", "detection of uneven inputs"),
    # of what torch keeps for a thread
    "set_grad_enabled": Symbol("torch._C:_set_grad_enabled", "nothing", torch.set_grad_enabled),
    "get_tracing_state": Symbol("torch._C:_get_tracing_state", "nothing", _is_tracing),
    "len_torch_function_stack": Symbol("torch._C:_len_torch_function_stack", _ATTENTION, lambda: 0),
    "get_function_stack_at": Symbol("torch._C:_get_function_stack_at", _ATTENTION),
    "pop_torch_function_stack": Symbol("torch._C:_pop_torch_function_stack", _ATTENTION),
    "push_on_torch_function_stack": Symbol("torch._C:_push_on_torch_function_stack", _ATTENTION),
    "DispatchKey": Symbol("torch._C:DispatchKey", _INSIDE),
    "DisableTorchFunction": Symbol("torch._C:DisableTorchFunction", _INSIDE),
    "is_dispatch_key_excluded": Symbol("torch._C:_dispatch_tls_is_dispatch_key_excluded", _INSIDE),
    "set_dispatch_key_excluded": Symbol("torch._C:_dispatch_tls_set_dispatch_key_excluded", _INSIDE),
    "is_functorch_wrapped_tensor": Symbol("torch._C:_functorch.is_functorch_wrapped_tensor", _ATTENTION),
    # of modes that see operations
    "TorchDispatchMode": Symbol("torch.utils._python_dispatch:TorchDispatchMode", f"{_FLOPS}; {_AGAIN}", _NoMode),
    "current_dispatch_mode": Symbol("torch.utils._python_dispatch:_get_current_dispatch_mode", _FLOPS),
    "HigherOrderOperator": Symbol("torch._ops:HigherOrderOperator", _FLOPS),
    "DisableTorchDispatch": Symbol("torch._C:_DisableTorchDispatch", _AGAIN),
    "unsafe_set_version_counter": Symbol("torch._C:_autograd._unsafe_set_version_counter", _AGAIN),
    "function_mode_stack": Symbol("torch.overrides:_get_current_function_mode_stack", _AGAIN),
    "dispatch_mode_stack": Symbol("torch.utils._python_dispatch:_get_current_dispatch_mode_stack", _AGAIN),
    "DeviceContext": Symbol("torch.utils._device:DeviceContext", _AGAIN),
    "tree_map": Symbol("torch.utils._pytree:tree_map", _AGAIN),
    "current_autograd_node": Symbol("torch._C:_current_autograd_node", _ORIGIN),
    "current_graph_task_id": Symbol("torch._C:_current_graph_task_id", "detection of torch.func trainings", lambda: -1),
    "get_sequence_nr": Symbol(
        "torch._C:_autograd._get_sequence_nr",
        (
            f"{_ORIGIN}; detection of graphs from before a rollback, of first steps without backward(), of "
            "trainings without hooks"
        ),
        lambda: 0,
    ),
    "BatchNorm": Symbol(
        "torch.nn.modules.batchnorm:_BatchNorm",
        "nothing",
        (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm),
    ),
    "ddp_logging_data": Symbol(
        "torch.nn.parallel:DistributedDataParallel._get_ddp_logging_data", _COMMUNICATION, lambda _: {}
    ),
    "fsdp_all_gather": Symbol(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:DefaultAllGather.__call__", _SHARDED
    ),
    "fsdp_reduce_scatter": Symbol(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:DefaultReduceScatter.__call__", _SHARDED
    ),
    "fsdp1_gathers": Symbol("torch.distributed.fsdp._flat_param:dist", _FLAT),
    "fsdp1_reductions": Symbol("torch.distributed.fsdp._runtime_utils:dist", _FLAT),
    "fsdp_clip_grad_norm_": Symbol("torch.distributed.fsdp:FullyShardedDataParallel.clip_grad_norm_", _NORM),
    "default_store": Symbol("torch.distributed.distributed_c10d:_get_default_store", "comparison of ranks"),
    "process_groups": Symbol("torch.distributed.distributed_c10d:_world", "comparison of ranks after a restart"),
    # of copies
    "flatten_dense_tensors": Symbol("torch._C:_nn.flatten_dense_tensors", _SLOWER, _side_by_side),
    "unflatten_dense_tensors": Symbol("torch._utils:_unflatten_dense_tensors", _COPIES),
    "unsafe_preserve_version_counter": Symbol(
        "torch.autograd.grad_mode:_unsafe_preserve_version_counter", "nothing", contextlib.nullcontext
    ),
    # of compilers; dynamo is never loaded for it
    "set_eval_frame": Symbol("torch._dynamo.eval_frame:set_eval_frame", _COMPILED),
    "get_eval_frame_callback": Symbol("torch._C._dynamo.eval_frame:get_eval_frame_callback", _COMPILED, lambda: None),
    "set_code_exec_strategy": Symbol("torch._C._dynamo.eval_frame:set_code_exec_strategy", _COMPILED_STEP),
    "FrameExecStrategy": Symbol("torch._C._dynamo.eval_frame:_FrameExecStrategy", _COMPILED_STEP),
    "FrameAction": Symbol("torch._C._dynamo.eval_frame:_FrameAction", _COMPILED_STEP),
    "compile": Symbol("torch:compile", _COMPILED),
    "dynamo_optimize": Symbol("torch._dynamo:optimize", _COMPILED),
    "make_traced_module": Symbol("torch.jit._trace:make_module", _COMPILED),
    "function_from_trace": Symbol("torch._C:_create_function_from_trace", _COMPILED),
    "function_from_trace_with_dict": Symbol("torch._C:_create_function_from_trace_with_dict", _COMPILED),
    "graph_by_tracing": Symbol("torch._C:_create_graph_by_tracing", _COMPILED),
    "enable_torch_function": Symbol("torch.overrides:_enable_torch_function", "flex attention"),
    "TransformGetItemToIndex": Symbol(
        "torch._dynamo._trace_wrapped_higher_order_op:TransformGetItemToIndex", "flex attention"
    ),
    # public, and younger than some torch
    "is_compiling": Symbol("torch.compiler:is_compiling", "detection of code that is being compiled"),
    "current_stream": Symbol("torch.accelerator:current_stream", "copies to the host without waiting"),
    "get_device_module": Symbol("torch:get_device_module", "copies to the host without waiting"),
}
_attributes: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    if name not in SYMBOLS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    symbol = _look_up(name)
    if symbol is _MISSING:
        symbol = SYMBOLS[name].instead
    if symbol is None:
        need(name)
    globals()[name] = _attributes[name] = symbol  # from now on a plain attribute of this module
    return symbol


def has(*names: str) -> bool:
    """Whether this torch has all of these symbols; a stand-in does not count."""
    return all(_look_up(name) is not _MISSING for name in names)


def need(*names: str) -> None:
    """Raise if torch lacks one of these symbols; called before anything that could not be undone without them."""
    lacking = [SYMBOLS[name].where for name in names if _look_up(name) is _MISSING]
    if lacking:
        lost = "; ".join(dict.fromkeys(SYMBOLS[name].lost for name in names if SYMBOLS[name].where in lacking))
        raise TorchLacksError(f"torch {torch_version()} lacks {', '.join(lacking)}. Switched off without it: {lost}")


def owner_of(name: str) -> tuple[Any, str] | None:
    """Return the module or class that has a symbol, and its name there; None if it is missing or not loaded."""
    module, _, path = SYMBOLS[name].where.partition(":")
    owner: Any = sys.modules.get(module)
    *way, last = path.split(".")
    for part in way:
        owner = getattr(owner, part, None)
    # In this order: looking a symbol up would load its module.
    return (owner, last) if hasattr(owner, last) and _look_up(name) is not _MISSING else None


def missing(load: bool = False) -> dict[str, str]:
    """Return the symbols that this torch lacks, with what is off; those of modules not loaded only with `load`."""
    lacking: dict[str, str] = {}
    for name, symbol in SYMBOLS.items():
        if (load or symbol.where.partition(":")[0] in sys.modules) and _look_up(name) is _MISSING:
            lacking[symbol.where] = symbol.lost
    return lacking


def torch_version() -> str:
    return str(torch.__version__)


def is_dynamo_loaded() -> bool:
    return "torch._dynamo" in sys.modules


def has_compiled() -> bool:
    """Whether `torch.compile` has made any code; the compiler is not loaded for it."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("stats", {}).get("unique_graphs"))


def _look_up(name: str) -> Any:
    if name in _symbols:
        return _symbols[name]
    module, _, path = SYMBOLS[name].where.partition(":")
    try:
        symbol: Any = import_module(module)
        for part in path.split("."):
            symbol = getattr(symbol, part)
    except (ImportError, AttributeError):
        symbol = _MISSING
    _symbols[name] = symbol
    return symbol


_symbols: dict[str, Any] = {}


def forget() -> None:
    """Look everything up again. For tests of this package."""
    for name in _attributes:
        globals().pop(name, None)
    _attributes.clear()
    _symbols.clear()
