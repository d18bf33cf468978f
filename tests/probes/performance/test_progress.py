from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as schedules
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.performance.progress import Progress, total_of
from mlflow_stability.probes.probe import StepView

SECONDS = 3.0
Told = dict[int, tuple[float, float]]
Schedule = Callable[[Optimizer], LRScheduler]


def run(make: Schedule, steps: int = 40, stepped_every: int = 1, times: int = 1) -> Told:
    """A training whose steps take three seconds each."""
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = make(optimizer)
    return follow(optimizer, lambda step: [schedule.step() for _ in range(times) if step % stepped_every == 0], steps)


def follow(optimizer: Optimizer, after_step: Callable[[int], Any], steps: int = 40, **given: Any) -> Told:
    clock = [0.0]
    progress = Progress(now=lambda: clock[0], **given)
    values: Told = {}
    for step in range(1, steps + 1):
        optimizer.step()
        clock[0] += SECONDS
        if progress.due(step):
            progress.before_step(StepView(optimizer, step, Layers()))
            for block in progress.blocks(step):
                assert list(map(str, block.signals)) == ["progress", "eta_seconds"]
                assert isinstance(block.values, tuple)
                values[step] = (block.values[0], block.values[1])
        after_step(step)
    return values


def lambdas(optimizer: Optimizer) -> LRScheduler:
    from transformers import get_cosine_schedule_with_warmup

    schedule: LRScheduler = get_cosine_schedule_with_warmup(optimizer, 10, 200)
    return schedule


def warm_up_and_cosine(optimizer: Optimizer) -> LRScheduler:
    first = schedules.LinearLR(optimizer, 0.1, 1.0, 20)
    return schedules.SequentialLR(optimizer, [first, schedules.CosineAnnealingLR(optimizer, 180)], [20])


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, total_steps=200),
        lambda optimizer: schedules.CosineAnnealingLR(optimizer, 200),
        lambda optimizer: schedules.LinearLR(optimizer, 1.0, 0.0, 200),
        lambda optimizer: schedules.PolynomialLR(optimizer, 200),
        warm_up_and_cosine,
        lambdas,
    ],
    ids=["OneCycleLR", "CosineAnnealingLR", "LinearLR", "PolynomialLR", "SequentialLR", "transformers"],
)
def test_a_schedule_that_ends_with_the_training_tells_how_far_it_is(make: Schedule) -> None:
    finished = run(make)
    assert list(finished) == [20, 30, 40]
    for step, (progress, left) in finished.items():
        assert progress == pytest.approx(step / 200)
        assert left == pytest.approx((200 - step) * SECONDS)


@pytest.mark.parametrize("total", [40, 57])
def test_a_finished_training_is_reported_as_complete(total: int) -> None:
    finished = run(lambda optimizer: schedules.CosineAnnealingLR(optimizer, total), steps=total)
    assert max(finished) == total
    assert finished[total] == (1.0, 0.0)


@pytest.mark.parametrize("total", [53, 54, 55, 56, 57])
def test_the_halves_of_a_gan_are_over_together(total: int) -> None:
    optimizers = [SGD([torch.zeros(1, requires_grad=True)], lr=0.1) for _ in range(2)]
    halves = [schedules.CosineAnnealingLR(optimizer, total) for optimizer in optimizers]
    progress = Progress(now=lambda: 0.0)
    values: Told = {}
    for step in range(1, 2 * total + 1):
        half = step % 2
        optimizers[half].step()
        if progress.due(step):
            progress.before_step(StepView(optimizers[half], step, Layers()))
            for block in progress.blocks(step):
                values[step] = (float(block.values[0]), float(block.values[1]))
        halves[half].step()
    assert values[2 * total] == (1.0, 0.0)
    assert [value for _, (value, _) in sorted(values.items())] == sorted(value for value, _ in values.values())


def test_a_training_that_continues_after_its_schedule_reports_no_more_progress() -> None:
    assert max(run(lambda optimizer: schedules.CosineAnnealingLR(optimizer, 35), steps=60)) == 35


def test_a_schedule_that_counts_for_every_process_is_followed_at_its_own_pace() -> None:
    finished = run(lambda optimizer: schedules.CosineAnnealingLR(optimizer, 400), times=2)
    assert finished[40] == (pytest.approx(80 / 400), pytest.approx((400 - 80) / 2 * SECONDS))


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: schedules.LinearLR(optimizer, 0.1, 1.0, 200),
        lambda optimizer: schedules.ConstantLR(optimizer, 0.1, 200),
        lambda optimizer: schedules.StepLR(optimizer, 200),
        lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, 200),
        lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 1.0),
        lambda optimizer: schedules.ChainedScheduler([schedules.ConstantLR(optimizer)]),
        lambda optimizer: schedules.CosineAnnealingLR(optimizer, 5),
    ],
    ids=["warm-up", "constant", "steps", "restarts", "any lambda", "chain", "short cosine"],
)
def test_a_schedule_whose_end_is_not_the_trainings_says_nothing(make: Schedule) -> None:
    assert run(make) == {}


def test_a_schedule_that_is_stepped_once_an_epoch_says_nothing() -> None:
    assert run(lambda optimizer: schedules.CosineAnnealingLR(optimizer, 50), stepped_every=9) == {}


def test_schedules_that_disagree_say_nothing() -> None:
    def two(optimizer: Optimizer) -> LRScheduler:
        first, other = schedules.CosineAnnealingLR(optimizer, 200), schedules.CosineAnnealingLR(optimizer, 100)
        step = first.step

        def both() -> None:
            step()
            other.step()

        first.step = both  # type: ignore[method-assign, assignment]
        return first

    assert run(two) == {}


def test_a_schedule_that_was_gone_back_on_starts_afresh() -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = schedules.CosineAnnealingLR(optimizer, 200)

    def after(step: int) -> None:
        schedule.step()
        if step == 25:
            schedule.last_epoch = 0

    values = follow(optimizer, after, 60)
    assert list(values) == [20, 40, 50, 60]
    assert values[60] == (pytest.approx(35 / 200), pytest.approx(165 * SECONDS))


def test_only_the_last_part_of_a_sequence_ends_it() -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    parts = [schedules.CosineAnnealingLR(optimizer, 10), schedules.ConstantLR(optimizer)]
    assert total_of(schedules.SequentialLR(optimizer, parts, [10])) is None


def test_a_hugging_face_trainer_is_believed_before_a_schedule() -> None:
    from transformers.trainer_callback import TrainerState

    state = TrainerState(max_steps=80)
    finished = TrainerState(max_steps=10, global_step=10)
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = schedules.CosineAnnealingLR(optimizer, 200)

    def after(step: int) -> None:
        schedule.step()
        state.global_step = step

    values = follow(optimizer, after)
    assert values[40] == (pytest.approx(40 / 80), pytest.approx(40 * SECONDS))
    assert finished.max_steps == 10


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
def test_a_lightning_trainer_tells_its_total(tmp_path: Any) -> None:
    import lightning

    values: Told = {}
    clock = [0.0]
    progress = Progress(now=lambda: clock[0])

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.count = 0

        def training_step(self, batch: Any, _number: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch[0]).mean()
            return loss

        def configure_optimizers(self) -> Optimizer:
            return SGD(self.parameters(), lr=0.1)

        def on_before_zero_grad(self, optimizer: Any) -> None:
            self.count += 1
            clock[0] += SECONDS
            if progress.due(self.count):
                progress.before_step(StepView(self.optimizers(use_pl_optimizer=False), self.count, Layers()))  # type: ignore[arg-type]
                for block in progress.blocks(self.count):
                    values[self.count] = (block.values[0], block.values[1])  # type: ignore[assignment]

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(60, 2)), batch_size=2)
    trainer = lightning.Trainer(
        max_epochs=3,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), loader)
    assert trainer.global_step == 45
    assert values[40][0] == pytest.approx(40 / 45)
    assert values[40][1] == pytest.approx(5 * SECONDS)
    assert values[45] == (1.0, 0.0)


def test_a_total_that_was_given_needs_no_schedule() -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    values = follow(optimizer, lambda step: None, total_steps=200)
    assert values == {step: (step / 200, pytest.approx((200 - step) * SECONDS)) for step in (20, 30, 40)}
    counted = [0.0]
    values = follow(
        optimizer, lambda step: counted.__setitem__(0, 512.0 * step), total_tokens=102_400, tokens=lambda: counted[0]
    )
    assert values == {step: (step / 200, pytest.approx((200 - step) * SECONDS)) for step in (20, 30, 40)}


def test_a_total_that_was_given_is_not_compared_with_a_schedule() -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = schedules.CosineAnnealingLR(optimizer, 100)
    values = follow(optimizer, lambda step: schedule.step(), total_steps=200)
    assert values[40][0] == 40 / 200


def test_a_training_longer_than_its_given_total_is_not_over() -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert max(follow(optimizer, lambda step: None, total_steps=25)) <= 25
