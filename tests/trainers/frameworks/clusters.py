"""What starts processes or takes the loop over: DeepSpeed without and with ZeRO, and Ray Train."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from trainers.frameworks.raw import model_of
from trainers.script import STEPS, Script, Trainer, norm_of


def deepspeed(script: Script, stage: int) -> None:
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    import deepspeed

    script.autolog()
    meeting = f"file://{Path('meeting').absolute()}"
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, init_method=meeting, rank=0, world_size=1)
    model = model_of()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        config={
            "train_batch_size": 8,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    for step in range(STEPS):
        inputs = script.batch(torch.randn(8, 6), step)
        loss = nn.functional.mse_loss(engine(inputs), torch.ones(8, 1))
        engine.backward(loss)
        # ZeRO has taken the gradients out of the parameters, and tells their norm after the step.
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            script.step(model, loss, None if stage else norm_of(model.parameters()))
        engine.step()
        if stage:
            script.note(norm=engine.get_global_grad_norm())
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        script.end(model)
    torch.distributed.destroy_process_group()


def ray_train(script: Script) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def worker() -> None:
        rank = ray.train.get_context().get_world_rank()
        mine = script if rank == 0 else replace(script, out=script.out.with_name("rank_1.json"))
        mine.autolog()
        model = ray.train.torch.prepare_model(model_of())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(rank)
        for step in range(STEPS):
            inputs = mine.batch(torch.randn(8, 6), step) if rank == 0 else torch.randn(8, 6)
            loss = nn.functional.mse_loss(model(inputs), torch.ones(8, 1))
            optimizer.zero_grad()
            loss.backward()
            mine.step(model, loss, norm_of(model.parameters()))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            ray.train.report({"loss": loss.item()})
        validation = nn.functional.mse_loss(model(torch.ones(8, 6)), torch.ones(8, 1)).item()
        ray.train.report({"val_loss": validation})
        mine.validated(validation)
        mine.end(model)

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=True)
    TorchTrainer(
        worker,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(name="table", storage_path=str(Path("ray").absolute())),
    ).fit()
    ray.shutdown()


TRAINERS = [
    Trainer("DeepSpeed ZeRO-0", lambda script: deepspeed(script, 0), packages=("deepspeed",), shown=("deepspeed",)),
    Trainer("DeepSpeed ZeRO-1", lambda script: deepspeed(script, 1), packages=("deepspeed",), shown=("deepspeed",)),
    Trainer("DeepSpeed ZeRO-2", lambda script: deepspeed(script, 2), packages=("deepspeed",), shown=("deepspeed",)),
    Trainer("DeepSpeed ZeRO-3", lambda script: deepspeed(script, 3), packages=("deepspeed",), shown=("deepspeed",)),
    Trainer("Ray Train", ray_train, packages=("ray[train]",), shown=("ray",)),
]
