from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from recovery.restorable import OPTIMIZERS, Net, Training, Words, bits
from torch import nn

from mlflow_stability.errors import RestoreRefused
from mlflow_stability.recovery.checkpoints.state_file import read_state, write_state
from mlflow_stability.recovery.skipping.loss_scale import calm_loss_scaler
from mlflow_stability.recovery.state.restore import EVERYTHING, RestoreChoice, restore_state
from mlflow_stability.recovery.state.state_copy import copy_state, with_what_followed
from mlflow_stability.recovery.state.training_parts import TrainingParts


def adamw(lr: float = 1e-2) -> Training:
    return Training.of(lambda model: [torch.optim.AdamW(model.parameters(), lr=lr)])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_restored_training_continues_bit_for_bit_as_before(name: str, through_a_file: bool, tmp_path: Path) -> None:
    training = Training.of(OPTIMIZERS[name])
    training.run(4)
    copy, before = copy_state(training.parts, 4), bits(training)
    if through_a_file:
        write_state(copy, tmp_path / "state.pt")
        copy = read_state(tmp_path / "state.pt")
    training.run(5)
    went, after = training.losses[4:], bits(training)
    assert after != before
    restore_state(copy, training.parts, EVERYTHING)
    assert bits(training) == before
    training.run(5)
    assert training.losses[9:] == went
    assert bits(training) == after


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fresh_training_with_no_state_yet_takes_it_all_over(name: str) -> None:
    training = Training.of(OPTIMIZERS[name])
    training.run(4)
    copy, before = copy_state(training.parts, 4), bits(training)
    training.run(3)
    fresh = Training.of(OPTIMIZERS[name])
    restore_state(copy, fresh.parts, EVERYTHING)
    assert bits(fresh) == before
    fresh.run(3)
    assert fresh.losses == training.losses[4:]
    assert bits(fresh) == bits(training)


def test_sparse_gradients_and_their_optimizer_are_restored() -> None:
    training = Training.of(lambda model: [torch.optim.SparseAdam(list(model.parameters()))], Words)
    training.run(3)
    copy, before = copy_state(training.parts, 3), bits(training)
    training.run(3)
    restore_state(copy, training.parts)
    assert bits(training) == before
    assert training.model.table.weight.grad is None


def test_the_copy_shares_nothing_with_what_it_restored() -> None:
    training = adamw()
    training.run(2)
    copy, before = copy_state(training.parts, 2), bits(training)
    fresh = adamw()
    for _ in range(2):
        restore_state(copy, fresh.parts, EVERYTHING)
        assert bits(fresh) == before
        fresh.run(3)


def test_tensors_keep_their_memory_and_their_versions() -> None:
    training = adamw()
    training.run(3)
    copy = copy_state(training.parts, 3)
    training.run(2)
    tensors = [*training.model.parameters(), *training.model.buffers()]
    for state in training.optimizers[0].state.values():
        tensors += [tensor for tensor in state.values() if isinstance(tensor, torch.Tensor)]
    before = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    restore_state(copy, training.parts)
    assert [(tensor.data_ptr(), tensor._version) for tensor in tensors] == before
    assert len(tensors) > 20


def test_state_that_was_created_after_the_copy_is_removed() -> None:
    training = adamw()
    copy = copy_state(training.parts, 0)
    training.run(2)
    restore_state(copy, training.parts)
    assert not training.optimizers[0].state


def test_layers_that_began_to_learn_later_are_restored_and_lose_their_state() -> None:
    training = adamw()
    head = list(training.model.head.parameters())
    learning = [parameter for parameter in training.model.parameters() if all(parameter is not other for other in head)]
    training.optimizers = [torch.optim.AdamW(learning)]
    training.run(2)
    copy, before = copy_state(training.parts, 2), [tensor.clone() for tensor in head]
    training.optimizers[0].add_param_group({"params": head, "lr": 0.5})
    training.run(2)
    assert all(value in training.optimizers[0].state for value in head)
    restore_state(copy, training.parts)
    assert not any(value in training.optimizers[0].state for value in head)
    assert all(torch.equal(first, other) for first, other in zip(head, before, strict=True))
    assert training.optimizers[0].param_groups[1]["lr"] == 0.5


def test_betas_that_the_script_changed_later_are_not_silently_restored() -> None:
    training = adamw()
    training.run(2)
    copy = copy_state(training.parts, 2)
    (group,) = training.optimizers[0].param_groups
    group["betas"], group["lr"] = (0.5, 0.6), 7e-3
    restore_state(copy, training.parts)
    assert (group["betas"], group["lr"]) == ((0.5, 0.6), 7e-3)
    restore_state(copy, training.parts, RestoreChoice(hyper_parameters=True))
    assert (group["betas"], group["lr"]) == ((0.9, 0.999), 1e-2)


def test_a_nan_learning_rate_is_restored_anyway() -> None:
    training = adamw()
    training.run(2)
    copy = copy_state(training.parts, 2)
    training.optimizers[0].param_groups[0]["lr"] = float("nan")
    restore_state(copy, training.parts)
    assert training.optimizers[0].param_groups[0]["lr"] == 1e-2


def test_the_schedule_is_restored_only_on_request() -> None:
    training = adamw()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizers[0], 50)
    parts = TrainingParts(tuple(training.optimizers), (training.model,), (schedule,))
    training.run(1)
    copy = copy_state(parts, 1)
    training.run(1)
    schedule.step()
    copy = with_what_followed(copy, parts)
    training.run(1)
    schedule.step()
    rate = schedule.get_last_lr()
    restore_state(copy, parts)
    assert (schedule.last_epoch, schedule.get_last_lr()) == (2, rate)
    restore_state(copy, parts, RestoreChoice(hyper_parameters=True, schedule=True))
    assert schedule.last_epoch == 1


def test_gradients_from_before_are_zero_and_still_there() -> None:
    training = adamw()
    training.run(2)
    copy = copy_state(training.parts, 2)
    training.model(torch.randn(6, 2, 8)).backward()
    addresses = [parameter.grad.data_ptr() for parameter in training.model.parameters()]
    next(training.model.parameters()).grad.fill_(torch.nan)
    restore_state(copy, training.parts)
    assert [parameter.grad.data_ptr() for parameter in training.model.parameters()] == addresses
    assert all(not parameter.grad.any() for parameter in training.model.parameters())


def scaled(steps: int) -> tuple[Training, torch.amp.GradScaler, TrainingParts]:
    training = adamw()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    parts = TrainingParts(tuple(training.optimizers), (training.model,), scaler=scaler)
    for _ in range(steps):
        scaler.scale(training.model(torch.randn(6, 2, 8))).backward()
        scaler.step(training.optimizers[0])
        scaler.update()
    return training, scaler, parts


def test_a_loss_scaler_is_restored_in_place_and_a_new_one_starts_from_the_copy() -> None:
    training, scaler, parts = scaled(3)
    copy, saved, address = copy_state(parts, 3), scaler.state_dict(), scaler._scale.data_ptr()
    scaler.update(2.0)
    scaler.set_growth_interval(9)
    restore_state(copy, parts, EVERYTHING)
    assert scaler.state_dict() == saved
    assert scaler._scale.data_ptr() == address
    fresh = torch.amp.GradScaler("cpu")
    restore_state(copy, TrainingParts(tuple(training.optimizers), (training.model,), scaler=fresh), EVERYTHING)
    assert fresh.state_dict() == saved


def test_only_the_scale_of_a_loss_scaler_is_restored_and_later_growth_settings_stay() -> None:
    _, scaler, parts = scaled(3)
    copy, saved = copy_state(parts, 3), scaler.state_dict()
    calm_loss_scaler(scaler)
    scaler.update(2.0)
    restore_state(copy, parts)
    assert scaler.get_scale() == saved["scale"] > 2.0
    assert (scaler.get_growth_interval(), scaler.get_growth_factor(), scaler.get_backoff_factor()) == (200, 1.5, 0.5)


def test_a_scaler_that_counts_to_another_interval_now_still_grows() -> None:
    training, scaler, parts = scaled(1)
    copy = copy_state(parts, 1)
    assert copy.later.scaler is not None
    assert int(copy.later.scaler["growth_tracker"]) == 1
    scaler.set_growth_interval(1)
    restore_state(copy, parts)
    before = scaler.get_scale()
    training.run(1)
    scaler.scale(training.model(torch.randn(6, 2, 8))).backward()
    scaler.step(training.optimizers[0])
    scaler.update()
    assert scaler.get_scale() == 2 * before


def test_averaged_copies_are_restored_to_their_earlier_state() -> None:
    training = adamw()
    average = torch.optim.swa_utils.AveragedModel(training.model)
    parts = TrainingParts(tuple(training.optimizers), (training.model,), averaged=(average,))
    training.run(2)
    copy = copy_state(parts, 2)
    average.update_parameters(training.model)
    copy, kept = with_what_followed(copy, parts), [parameter.clone() for parameter in average.parameters()]
    training.run(2)
    average.update_parameters(training.model)
    assert int(average.n_averaged) == 2
    restore_state(copy, parts)
    assert all(torch.equal(first, other) for first, other in zip(average.parameters(), kept, strict=True))
    assert int(average.n_averaged) == 1


def wider() -> Training:
    training = adamw()
    training.model.head = nn.Linear(6, 3)
    return Training(training.model, [torch.optim.AdamW(training.model.parameters())])


def in_double() -> Training:
    training = adamw()
    training.model.head.double()
    return training


def with_sgd() -> Training:
    return Training.of(OPTIMIZERS["sgd momentum"])


def deeper() -> Training:
    training = adamw()
    training.model.more = nn.Linear(2, 2)
    return Training(training.model, [torch.optim.AdamW(training.model.parameters())])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (wider, r"head\.weight is \(1, 6\) in it and \(3, 6\) here"),
        (in_double, r"head\.weight is torch\.float32 in it and torch\.float64 here"),
        (deeper, r"more\.weight is missing in it"),
        (with_sgd, r"optimizer 0 \(SGD\) was of type AdamW"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_first_mismatch_and_nothing_is_changed(make, says: str) -> None:
    training = adamw()
    training.run(3)
    copy = copy_state(training.parts, 3)
    other = make()
    before, random = bits(other), torch.get_rng_state()
    with pytest.raises(RestoreRefused, match=says) as refusal:
        restore_state(copy, other.parts, EVERYTHING)
    assert "step 3" in str(refusal.value)
    assert "Nothing was changed" in str(refusal.value)
    assert bits(other) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_a_table_that_has_grown_since_is_left_alone() -> None:
    training = adamw()
    training.model.register_buffer("table", torch.zeros(4), persistent=False)
    copy = copy_state(training.parts, 0)
    training.model.table = torch.ones(9)
    restore_state(copy, training.parts)
    assert torch.equal(training.model.table, torch.ones(9))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_buffers_of_every_layout_are_restored() -> None:
    training = adamw()
    model = training.model
    model.register_buffer("coordinates", torch.eye(3).to_sparse())
    model.register_buffer("rows", torch.eye(3).to_sparse_csr())
    model.register_buffer("wide", torch.tensor([2.0]).expand(5))
    model.register_buffer("turned", torch.arange(6.0).view(2, 3).t())
    model.register_buffer("empty", torch.empty(0, 3))
    copy = copy_state(training.parts, 0)
    with torch.no_grad():
        model.coordinates.copy_(torch.ones(3, 3).to_sparse())
        model.rows.copy_((4 * torch.eye(3)).to_sparse_csr())
        model.turned.zero_()
    restore_state(copy, training.parts)
    assert copy.not_finite() == {"mask"}
    assert torch.equal(model.coordinates.to_dense(), torch.eye(3))
    assert torch.equal(model.rows.to_dense(), torch.eye(3))
    assert torch.equal(model.wide, torch.full((5,), 2.0))
    assert torch.equal(model.turned, torch.arange(6.0).view(2, 3).t())


def test_the_parts_of_a_training_that_is_gone_are_gone() -> None:
    from mlflow_stability.recovery.state.training_parts import WeakTrainingParts

    training = adamw()
    weak = WeakTrainingParts(training.parts)
    assert weak.alive() == training.parts
    del training
    gc.collect()
    assert weak.alive() is None


def test_the_net_really_has_what_these_tests_are_about() -> None:
    net = Net()
    assert net.down.weight is net.up.weight
    assert len(list(net.parameters())) < sum(len(module._parameters) for module in net.modules())
