"""What went wrong in small trainings is named, and what had no part in it is not blamed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scenarios.flown_history import recorded
from scenarios.flying import flying
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adadelta, Adam, Optimizer, Rprop

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import RATE_TOPICS, Diagnosis, Remedy

pytestmark = pytest.mark.scenario
CLASSES, COLUMNS = 5, 10
AT = 401
"""The step at which something changes."""
Batch = tuple[Tensor, Tensor]


def diagnosed(folder: Path, training: Callable[[], None], **settings: object) -> Diagnosis:
    with flying(folder, strict=False, **settings) as flown:
        training()
    return diagnosis_of(recorded(flown))


def classifier(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def batch_of(generator: torch.Generator, count: int = 64) -> Batch:
    centers = 1.5 * torch.randn(CLASSES, COLUMNS, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centers[labels] + torch.randn(count, COLUMNS, generator=generator), labels


def classify(
    seed: int,
    make: Callable[[nn.Module], Optimizer] = lambda model: Adam(model.parameters(), lr=1e-3),
    *,
    steps: int = 600,
    changed: Callable[[Batch], Batch] | None = None,
    before_step: Callable[[int, nn.Module, Optimizer], None] = lambda step, model, optimizer: None,
    model: nn.Module | None = None,
) -> None:
    """Train a classifier; from step `AT` on its batches are changed."""
    model = classifier(seed) if model is None else model
    optimizer, generator = make(model), torch.Generator().manual_seed(seed + 1)
    for step in range(1, steps + 1):
        before_step(step, model, optimizer)
        inputs, labels = batch_of(generator)
        if changed is not None and step >= AT:
            inputs, labels = changed((inputs, labels))
        loss = cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def regress(seed: int, *, scaled: bool) -> None:
    """Train a regression whose targets are other ones from step `AT` on."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer, generator = Adam(model.parameters(), lr=3e-3), torch.Generator().manual_seed(seed + 1)
    for step in range(1, 601):
        inputs = torch.randn(32, 8, generator=generator)
        wanted = inputs[:, :1].sin() + inputs[:, 1:2] + 0.2 * torch.randn(32, 1, generator=generator)
        loss = mse_loss(model(inputs), 3 * wanted - 2 if scaled and step >= AT else wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def other_labels(batch: Batch) -> Batch:
    return batch[0], (batch[1] + 1) % CLASSES


def no_labels(batch: Batch) -> Batch:
    return batch[0], batch[1].flip(0)


def about_the_rate(remedies: tuple[Remedy, ...]) -> list[Remedy]:
    return [remedy for remedy in remedies if remedy.topic in RATE_TOPICS]


def momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        lambda: classify(0, changed=other_labels),
        lambda: classify(1, changed=no_labels),
        lambda: classify(0, momentum, changed=no_labels),
        lambda: regress(0, scaled=True),
    ],
    ids=["other labels", "shuffled labels", "shuffled labels under SGD", "other targets"],
)
def test_a_loss_that_jumps_before_any_update_explains_it_is_changed_data(
    tmp_path: Path, training: Callable[[], None]
) -> None:
    diagnosis = diagnosed(tmp_path, training)
    assert diagnosis.cause is not None, diagnosis.cannot_tell
    assert (diagnosis.cause.name, diagnosis.cause.since) == ("data_changed", AT)
    assert "the step before was normal: loss" in str(diagnosis.cause.evidence)
    assert about_the_rate(diagnosis.remedies) == [], "the same report says that the learning rate is not the cause"


@pytest.mark.slow
def test_a_learning_rate_that_jumps_is_not_a_change_of_the_data(tmp_path: Path) -> None:
    def jump(step: int, _model: nn.Module, optimizer: Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 1e-3 if step < AT else 0.1

    diagnosis = diagnosed(tmp_path, lambda: classify(0, before_step=jump))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.since) == ("learning_rate_jump", AT)


def recurrent(seed: int) -> None:
    """An RNN whose gradients are clipped up to step 300."""
    torch.manual_seed(seed)
    network, head = nn.RNN(4, 64, nonlinearity="relu", batch_first=True), nn.Linear(64, 1)
    with torch.no_grad():
        network.weight_hh_l0.copy_(1.02 * torch.eye(64) + 0.02 * torch.randn(64, 64))
    parameters = [*network.parameters(), *head.parameters()]
    optimizer, generator = SGD(parameters, lr=0.05), torch.Generator().manual_seed(seed + 1)
    for step in range(1, 401):
        inputs = torch.randn(16, 30, 4, generator=generator)
        loss = mse_loss(head(network(inputs)[0][:, -1]), inputs[:, -5:, 0].sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        if step <= 300:
            clip_grad_norm_(parameters, 0.5)
        optimizer.step()


@pytest.mark.slow
def test_steps_that_explode_where_clipping_ended_are_put_down_to_that_and_not_to_damage(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda: recurrent(0))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.certainty, diagnosis.cause.since) == ("clipping_ended", "likely", 301)
    assert str(diagnosis.remedies[0]) == "Clip gradients at 0.5 again, as up to step 300."
    named = {finding.cause.name for finding in diagnosis.findings if finding.cause is not None}
    assert "damaged_weights" not in named


def broken_at_once(seed: int, loss_of: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = classifier(seed)
    optimizer, generator = Adam(model.parameters(), lr=1e-3), torch.Generator().manual_seed(seed)
    for _ in range(60):
        inputs, labels = batch_of(generator)
        loss = loss_of(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def of_an_empty_selection(outputs: Tensor, labels: Tensor) -> Tensor:
    chosen = labels > CLASSES
    return cross_entropy(outputs[chosen], labels[chosen])


def of_a_logarithm(outputs: Tensor, labels: Tensor) -> Tensor:
    shares = outputs.relu()
    return -(one_hot(labels, CLASSES) * (shares / shares.sum(1, keepdim=True)).log()).sum(1).mean()


@pytest.mark.parametrize(
    ("loss_of", "rollback", "cause"),
    [
        (of_an_empty_selection, False, "broken_from_start"),
        (of_an_empty_selection, True, "broken_from_start"),
        (of_a_logarithm, False, "broken_from_start"),
        (of_a_logarithm, True, "loss_function"),
    ],
)
def test_a_nan_before_any_update_is_never_the_fault_of_the_learning_rate(
    tmp_path: Path, loss_of: Callable[[Tensor, Tensor], Tensor], rollback: bool, cause: str
) -> None:
    diagnosis = diagnosed(tmp_path, lambda: broken_at_once(0, loss_of), rollback=rollback)
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.since) == (cause, 1)
    assert "learning rate: no optimizer step was taken before step 1" in diagnosis.cause.ruled_out
    assert about_the_rate(diagnosis.remedies) == []


@pytest.mark.parametrize(("rate", "make"), [(20.0, SGD), (100.0, Adam)])
def test_a_rate_of_20_or_100_is_far_too_high(tmp_path: Path, rate: float, make: type[Optimizer]) -> None:
    diagnosis = diagnosed(tmp_path, lambda: classify(0, lambda model: make(model.parameters(), lr=rate), steps=120))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_too_high"
    assert "far too high" in diagnosis.cause.statement
    assert str(diagnosis.remedies[0]).startswith(f"Lower the learning rate from {rate:g} to about")


@pytest.mark.slow
@pytest.mark.parametrize("make", [Adadelta, Rprop], ids=["Adadelta", "Rprop"])
def test_a_loss_that_is_stuck_at_the_default_rate_is_not_put_down_to_it(
    tmp_path: Path, make: Callable[..., Optimizer]
) -> None:
    def shuffle(batch: Batch) -> Batch:
        return batch[0], batch[1][torch.randperm(len(batch[1]))]

    def training() -> None:
        model = classifier(0)
        optimizer, generator = make(model.parameters()), torch.Generator().manual_seed(1)
        for _ in range(600):
            inputs, labels = shuffle(batch_of(generator))
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()

    diagnosis = diagnosed(tmp_path, training)
    assert diagnosis.outcome == "stuck"
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "guessing"


def test_a_loss_that_is_stuck_because_nearly_all_parameters_are_frozen_says_so(tmp_path: Path) -> None:
    model = classifier(0).requires_grad_(requires_grad=False)
    model[4].bias.requires_grad_()
    diagnosis = diagnosed(
        tmp_path, lambda: classify(0, lambda model: Adadelta(model.parameters()), model=model, steps=600)
    )
    assert diagnosis.outcome == "stuck"
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.certainty) == ("frozen_parameters", "likely")
    assert diagnosis.cause.statement == "Only 5 of 5,189 values of the model are trained; all others are frozen."
    assert str(diagnosis.remedies[0]).startswith("Check whether these parameters should be frozen")


@pytest.mark.slow
def test_the_text_of_a_jump_names_the_optimizer_whose_learning_rate_jumped(tmp_path: Path) -> None:
    def adversaries() -> None:
        torch.manual_seed(0)
        maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        of_maker, of_judge = (Adam(item.parameters(), lr=1e-3, betas=(0.5, 0.999)) for item in (maker, judge))
        logistic, ones, zeros = nn.BCEWithLogitsLoss(), torch.ones(64, 1), torch.zeros(64, 1)
        for step in range(400):
            if step == 300:
                of_maker.param_groups[0]["lr"] = 0.3
            made = maker(torch.randn(64, 4))
            real = torch.randn(64, 2) + 2
            loss = logistic(judge(real), ones) + logistic(judge(made.detach()), zeros)
            of_judge.zero_grad()
            loss.backward()
            of_judge.step()
            loss = logistic(judge(made), ones)
            of_maker.zero_grad()
            loss.backward()
            of_maker.step()

    diagnosis = diagnosed(tmp_path, adversaries)
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_jump"
    assert diagnosis.cause.statement.startswith("The learning rate of optimizer_1 jumped from 0.001 to 0.3 at step 301")
    assert math.isclose(diagnosis.cause.since or 0, 301)


def with_averages(seed: int, left_in: Callable[[nn.Module, list[Tensor]], None], first: int = 1) -> None:
    """A classifier of noisy labels whose weights' averages are used for an evaluation every 400 steps."""
    model = classifier(seed)
    optimizer, generator = Adam(model.parameters(), lr=2e-3), torch.Generator().manual_seed(seed + 1)
    averages = [0.0 * parameter.detach() for parameter in model.parameters()]
    for step in range(first, first + 1300):
        inputs, labels = batch_of(generator)
        wrong = torch.rand(labels.shape, generator=generator) < 0.1
        labels = torch.where(wrong, torch.randint(CLASSES, labels.shape, generator=generator), labels)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        for average, weight in zip(averages, model.parameters(), strict=True):
            average.mul_(0.999).add_(weight.detach(), alpha=0.001)
        if step and step % 400 == 0:
            left_in(model, averages)


def by_data(model: nn.Module, averages: list[Tensor]) -> None:
    for average, weight in zip(averages, model.parameters(), strict=True):
        weight.data.copy_(average)


def by_state(model: nn.Module, averages: list[Tensor]) -> None:
    model.load_state_dict(dict(zip(model.state_dict(), averages, strict=True)))


def taken_out_again(model: nn.Module, averages: list[Tensor]) -> None:
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    by_state(model, averages)
    model.load_state_dict(kept)


@pytest.mark.slow
@pytest.mark.parametrize(("left_in", "first"), [(by_data, 0), (by_state, 1)])
def test_averaged_weights_that_stay_in_after_an_evaluation_are_named_with_their_period(
    tmp_path: Path, left_in: Callable[[nn.Module, list[Tensor]], None], first: int
) -> None:
    diagnosis = diagnosed(tmp_path, lambda: with_averages(0, left_in, first))
    assert diagnosis.cause is not None, diagnosis.verdict
    assert (diagnosis.cause.name, diagnosis.cause.certainty) == ("weights_replaced", "certain")
    after = 402 - first
    assert (
        f"replaced by other code between steps {after - 1} and {after}: they changed by 0.7"
        in diagnosis.cause.statement
    )
    assert "It repeats every 400 steps." in diagnosis.cause.statement
    assert str(diagnosis.remedies[0]).startswith("Restore the training weights after each evaluation")
    assert about_the_rate(diagnosis.remedies) == []


@pytest.mark.slow
def test_averaged_weights_that_are_taken_out_again_are_not_a_problem(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, lambda: with_averages(0, taken_out_again)).outcome == "healthy"


@pytest.mark.slow
def test_weights_that_are_written_to_once_are_not_a_change_of_the_data(tmp_path: Path) -> None:
    def damage(step: int, model: nn.Module, _optimizer: Optimizer) -> None:
        if step == AT:
            with torch.no_grad():
                model[2].weight.mul_(-1.0)

    diagnosis = diagnosed(tmp_path, lambda: classify(0, before_step=damage))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.certainty, diagnosis.cause.since) == (
        "weights_replaced",
        "likely",
        AT,
    )


def slow_weights(every: int) -> Callable[[int, nn.Module, Optimizer], None]:
    """Lookahead: every few steps the weights go half-way back to slow ones."""
    slow: list[Tensor] = []

    def sync(step: int, model: nn.Module, _optimizer: Optimizer) -> None:
        slow.extend(parameter.detach().clone() for parameter in model.parameters() if step == 1)
        if step % every == 0:
            with torch.no_grad():
                for kept, weight in zip(slow, model.parameters(), strict=True):
                    weight.copy_(kept.lerp_(weight, 0.5))

    return sync


def pruned(step: int, model: nn.Module, _optimizer: Optimizer) -> None:
    if step % 100 == 0:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_((parameter.abs() > 0.01 * step / 100).to(parameter))


def clamped(_step: int, model: nn.Module, _optimizer: Optimizer) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.3, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("sync", [slow_weights(5), pruned, clamped])
def test_writes_to_the_weights_that_do_no_harm_cause_no_warning(
    tmp_path: Path, sync: Callable[[int, nn.Module, Optimizer], None]
) -> None:
    diagnosis = diagnosed(tmp_path, lambda: classify(0, before_step=sync))
    assert diagnosis.outcome == "healthy", diagnosis.verdict


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "shuffled", "target"), [(0, True, 100.0), (1, False, 100.0), (0, False, 3000.0)])
def test_one_bad_sample_that_returns_in_each_epoch_is_a_bad_batch(
    tmp_path: Path, seed: int, shuffled: bool, target: float
) -> None:
    def training() -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer, generator = Adam(model.parameters(), lr=3e-3), torch.Generator().manual_seed(seed + 1)
        inputs = torch.randn(640, 8, generator=generator)
        wanted = inputs[:, :1].sin() + inputs[:, 1:2] + 0.2 * torch.randn(640, 1, generator=generator)
        wanted[17] = target
        for _ in range(20):
            order = torch.randperm(640, generator=generator) if shuffled else torch.arange(640)
            for chosen in order.split(32):
                optimizer.zero_grad()
                mse_loss(model(inputs[chosen]), wanted[chosen]).backward()
                optimizer.step()

    diagnosis = diagnosed(tmp_path, training)
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "bad_batch"
    assert "20 losses of" in diagnosis.cause.statement
    assert ("every 20 steps" in diagnosis.cause.statement) or shuffled
    named = {finding.cause.name for finding in diagnosis.findings if finding.cause is not None}
    assert "gradients_not_cleared" not in named
