"""Reinforcement learning: PPO and SAC of stable-baselines3, DQN of torchrl. A NaN comes as a reward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from trainers.script import SEED, STEPS, Script, Trainer, norm_of

BATCH = 32


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def note_steps(script: Script, optimizer: torch.optim.Optimizer, track: str = "") -> None:
    """At each step of this optimizer, which SB3 calls somewhere inside."""

    def before(optimizer: torch.optim.Optimizer, *call: Any) -> None:
        parameters = parameters_of(optimizer)
        script.step(parameters, None, norm_of(parameters), track)

    optimizer.register_step_pre_hook(before)


def ppo(script: Script) -> None:
    import gymnasium
    from stable_baselines3 import PPO

    script.autolog()

    class Broken(gymnasium.RewardWrapper):  # type: ignore[misc,type-arg]
        seen = 0

        def reward(self, reward: Any) -> float:
            self.seen += 1
            return float("nan") if script.nan((self.seen - 1) // BATCH) and self.seen % BATCH == 5 else float(reward)

    class OwnPPO(PPO):  # type: ignore[misc]
        def train(self) -> None:
            super().train()
            script.note(loss=self.logger.name_to_value["train/loss"])

    model = OwnPPO(
        "MlpPolicy",
        Broken(gymnasium.make("Pendulum-v1")),
        n_steps=BATCH,
        batch_size=BATCH,
        n_epochs=1,
        max_grad_norm=1000.0,  # so that what the script sees at the step is the norm before clipping
        seed=SEED,
        device="cpu",
    )
    note_steps(script, model.policy.optimizer)
    model.learn(STEPS * BATCH, log_interval=None)
    script.end(model.policy)


def sac(script: Script) -> None:
    from stable_baselines3 import SAC
    from stable_baselines3.common.buffers import ReplayBuffer

    script.autolog()

    class Broken(ReplayBuffer):  # type: ignore[misc]
        sampled = 0

        def sample(self, *args: Any, **named: Any) -> Any:
            result = super().sample(*args, **named)
            self.sampled += 1
            return result._replace(rewards=script.batch(result.rewards, self.sampled - 1))

    class OwnSAC(SAC):  # type: ignore[misc]
        def train(self, *args: Any, **named: Any) -> None:
            super().train(*args, **named)
            for track in ("actor", "critic", "ent_coef"):
                script.note(loss=self.logger.name_to_value[f"train/{track}_loss"], track=track)

    model = OwnSAC(
        "MlpPolicy",
        "Pendulum-v1",
        policy_kwargs={"net_arch": [32, 32]},
        learning_starts=BATCH,
        batch_size=BATCH,
        replay_buffer_class=Broken,
        seed=SEED,
        device="cpu",
    )
    optimizers = {
        "actor": model.actor.optimizer,
        "critic": model.critic.optimizer,
        "ent_coef": model.ent_coef_optimizer,
    }
    for track, optimizer in optimizers.items():
        note_steps(script, optimizer, track)
    model.learn(STEPS + BATCH, log_interval=1000)
    script.end(*(parameters_of(item) for item in optimizers.values()), tracks=tuple(optimizers))


def torchrl(script: Script) -> None:
    from tensordict import TensorDict
    from torchrl.data import OneHot
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    script.autolog()
    actor = QValueActor(MLP(in_features=4, out_features=2, num_cells=[16]), spec=OneHot(2), in_keys=["observation"])
    loss_module = DQNLoss(actor, action_space="one_hot", delay_value=True)
    loss_module.make_value_estimator(gamma=0.9)
    updater = SoftUpdate(loss_module, eps=0.95)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=0.01)
    for step in range(STEPS):
        done = torch.zeros(8, 1, dtype=torch.bool)
        data = TensorDict(
            {
                "observation": torch.randn(8, 4),
                "action": nn.functional.one_hot(torch.randint(2, (8,)), 2),
                "next": {
                    "observation": torch.randn(8, 4),
                    "reward": script.batch(torch.randn(8, 1), step),
                    "done": done,
                    "terminated": done,
                },
            },
            [8],
        )
        loss = loss_module(data)["loss"]
        optimizer.zero_grad()
        loss.backward()
        parameters = parameters_of(optimizer)
        script.step(parameters, loss, norm_of(parameters))
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        updater.step()
    script.end(parameters_of(optimizer))


SB3 = ("stable-baselines3",)
TRAINERS = [
    Trainer("SB3 PPO", ppo, packages=SB3, shown=SB3),
    Trainer("SB3 SAC", sac, packages=SB3, shown=SB3),
    Trainer("torchrl", torchrl, packages=("torchrl",), shown=("torchrl", "tensordict")),
]
