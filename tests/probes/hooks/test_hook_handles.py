from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # puts a torch.manual_seed of its own in place when it is imported
from scenarios.watching import batches, mse, tiny_model, watching
from torch.optim import SGD
from torch.optim import optimizer as torch_optimizer

from mlflow_stability.probes.hooks.guarded_hooks import HookHandles

TOUCHED = (
    (torch.autograd, "backward"),
    (torch.optim.Optimizer, "__init__"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.nn.Module, "zero_grad"),
    (torch.nn.Module, "state_dict"),
    (torch.nn.Module, "load_state_dict"),
    (torch.nn.utils.clip_grad, "_get_total_norm"),
    (torch.nn.utils, "get_total_norm"),
    (torch.nn.utils.clip_grad, "_clip_grads_with_norm_"),
    (torch.nn.utils, "clip_grads_with_norm_"),
    (torch.nn.utils.clip_grad, "clip_grad_value_"),
    (torch.nn.utils, "clip_grad_value_"),
    (torch.amp.GradScaler, "scale"),
    (torch.amp.GradScaler, "unscale_"),
    (torch.amp.GradScaler, "step"),
)


def namespaces() -> list[dict[str, Any]]:
    """Everything that a patch could be in."""
    places = (torch, torch.autograd, torch.nn, torch.nn.Module, torch.nn.utils, torch.nn.utils.clip_grad, torch.optim)
    more = (torch.optim.Optimizer, torch_optimizer, torch.amp, torch.amp.GradScaler, torch.Tensor)
    return [dict(vars(place)) for place in (*places, *more)]


def around(original: Any, *args: Any) -> Any:
    return ["around", original(*args)]


def test_after_watching_every_name_in_torch_holds_the_object_that_it_held_before() -> None:
    before = namespaces()
    with watching():
        during = [vars(owner)[name] for owner, name in TOUCHED]
        mse(model := tiny_model(), next(batches(1))).backward()
        SGD(model.parameters(), lr=0.1).step()
    after = namespaces()
    assert len({id(item) for item in during} & {id(value) for names in before for value in names.values()}) == 0
    for old, new in zip(before, after, strict=True):
        # Torch imports some of its modules late, so there may be more names than before.
        assert [name for name in old if old[name] is not new.get(name)] == []
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert not torch_optimizer._global_optimizer_post_hooks


def test_only_the_places_that_are_listed_are_touched() -> None:
    before = namespaces()
    with watching():
        during = namespaces()
    touched = {name for old, new in zip(before, during, strict=True) for name in new if old.get(name) is not new[name]}
    assert touched == {name for _, name in TOUCHED}


def test_a_later_patch_of_other_code_stays_and_ours_becomes_a_plain_call() -> None:
    owner = SimpleNamespace(call=lambda: "original")
    handles = HookHandles()
    handles.patch(owner, "call", around)
    ours = owner.call
    owner.call = lambda: ["theirs", ours()]
    theirs = owner.call
    assert owner.call() == ["theirs", ["around", "original"]]
    handles.remove()
    assert owner.call is theirs
    assert owner.call() == ["theirs", "original"]


def test_patching_again_below_a_patch_of_other_code_does_not_count_twice() -> None:
    owner = SimpleNamespace(call=lambda: "original")
    handles = HookHandles()
    handles.patch(owner, "call", around)
    ours = owner.call
    owner.call = lambda: ["theirs", ours()]
    handles.remove()
    handles.patch(owner, "call", around)
    assert owner.call() == ["around", ["theirs", "original"]]
    handles.remove()
    assert owner.call() == ["theirs", "original"]


def test_removing_twice_does_nothing_more() -> None:
    owner = SimpleNamespace(call=len)
    handles = HookHandles()
    handles.patch(owner, "call", around)
    handles.remove()
    handles.remove()
    assert owner.call is len
