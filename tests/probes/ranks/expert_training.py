"""Trains a small mixture of experts on gloo processes, of which each has one expert, and notes what one process would.

Arguments: `ddp`, where experts are plain tensors that DDP leaves alone, or `fsdp2`, where they are shards of a
`DTensor`; the folder for journals and for what is noted; whether the autopilot is on, and then whether the batch of the
last rank has a NaN at step 12: `watched` or `autopilot`. Prints the step and whether the rank's weights changed.
"""

from __future__ import annotations

import gc
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability

STEPS, LAYERS_EVERY, NAN_AT = 21, 10, 12


class Experts(nn.Module):
    """All experts, or those of this process."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, 8, 8) / 3)


class Mixture(nn.Module):
    """One expert for each token."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.up, self.router, self.head = nn.Linear(6, 8), nn.Linear(8, size), nn.Linear(8, 1)
        self.experts = Experts(size)
        self.is_whole = True

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.up(inputs).tanh()
        scores, chosen = self.router(hidden).softmax(-1).max(-1)
        weight = self.experts.weight
        experts = weight.to_local() if isinstance(weight, DTensor) else weight
        if self.is_whole:
            out = torch.stack([token @ experts[expert] for token, expert in zip(hidden, chosen, strict=True)])
        else:
            out = self.exchanged(hidden, chosen, experts[0])
        output: Tensor = self.head(hidden + scores[:, None] * out.tanh())
        return output

    def exchanged(self, hidden: Tensor, chosen: Tensor, expert: Tensor) -> Tensor:
        """Each token goes to the process of its expert, and comes back."""
        order = chosen.argsort(stable=True)
        sent = chosen.bincount(minlength=dist.get_world_size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there, back = received.tolist(), sent.tolist()
        tokens = all_to_all_single(hidden.new_empty(sum(there), 8), hidden[order].contiguous(), there, back)
        home = all_to_all_single(torch.empty_like(hidden), (tokens @ expert).contiguous(), back, there)
        return torch.empty_like(home).index_copy(0, order, home)


def parallel(way: str, model: Mixture) -> nn.Module:
    """The model with the expert of this process alone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    own = model.experts.weight.detach()[rank : rank + 1].clone()
    model.is_whole = False
    if way == "ddp":
        model.experts.weight = nn.Parameter(own)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["experts.weight"])
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (size,))
    model.experts.weight = nn.Parameter(DTensor.from_local(own, mesh, [Shard(0)]))
    return fully_shard(model, mesh=mesh, ignored_params={model.experts.weight})


def main(way: str, folder: Path, mode: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    autopilot = mode == "autopilot"
    options = mlflow_stability.Options(journal_dir=folder / "journals")
    mlflow_stability.autolog(
        offline=True, strict=True, layers_every_n_steps=LAYERS_EVERY, rollback=autopilot, options=options
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole, plain = Mixture(size), Mixture(size)
    plain.load_state_dict(whole.state_dict())
    model = parallel(way, plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    truth_optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
    truth: list[dict[str, float]] = []
    for step in range(1, STEPS + 1):
        dice = [torch.Generator().manual_seed(1000 * step + number) for number in range(size)]
        batches = [torch.randn(8, 6, generator=item) for item in dice]
        inputs = batches[rank].clone()
        if autopilot and step == NAN_AT and rank == size - 1:
            inputs[0, 0] = math.nan
        before = local(model)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        if plain.experts.weight.grad is not None:  # of the sum of all losses, not their mean
            plain.experts.weight.grad /= size
        if step <= 4 and (session := mlflow_stability.current_session()) is not None:
            session._meter.ranks.poll(30.0)  # a real step takes longer than the answer of the others to the last one
        optimizer.step()
        print(step, int(not torch.equal(before, local(model))), flush=True)
        if not (autopilot and step == NAN_AT):
            truth.append({"step": step, **step_of(whole, truth_optimizer, batches)})
    dist.barrier()
    mlflow_stability.autolog(disable=True)
    if rank == 0:
        (folder / "truth.json").write_text(json.dumps(truth))
    dist.barrier()
    del model  # torch may deadlock where a DDP outlives its group: https://github.com/pytorch/pytorch/issues/56297
    gc.collect()
    dist.destroy_process_group()


def local(model: nn.Module) -> Tensor:
    parts = [parameter.to_local() if isinstance(parameter, DTensor) else parameter for parameter in model.parameters()]
    return torch.cat([part.detach().reshape(-1) for part in parts])


def step_of(model: Mixture, optimizer: Any, batches: list[Tensor]) -> dict[str, float]:
    """A step of the model with all experts, by hand."""
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    optimizer.zero_grad()
    torch.stack([model(batch).square().mean() for batch in batches]).mean().backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    type(optimizer).step.__wrapped__(optimizer)  # a step that no hook of torch sees
    moved = {name: tensor.detach() - before[name] for name, tensor in model.named_parameters()}
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    weights, change = norm(before.values()), norm(moved.values())
    return {
        "grad_norm": norm(gradients.values()),
        "param_norm": weights,
        "update_norm": change,
        "update_ratio": change / weights,
        "momentum_norm": norm(moments),
        "grad_norm@experts": norm([gradients["experts.weight"]]),
    }


def norm(tensors: Any) -> float:
    return float(torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors]).norm())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
