from __future__ import annotations

import pytest

from mlflow_stability.diagnosis.parameters import is_chosen, place_of

IN_ORDER = (
    ("learning_rate", "lr", "base_lr", "optimizer_1.learning_rate", "trainer.lr", "max-lr"),
    ("batch_size", "per_device_train_batch_size", "accumulation", "batch", "gradient_accumulation_steps"),
    ("optimizer", "optim", "optimizer_1"),
    ("momentum", "optimizer_1.momentum", "beta1"),
    ("warmup_steps", "warm_up", "num_warmup_steps", "lr_scheduler", "scheduler", "scheduler.num_warmup_steps"),
    ("weight_decay", "group_1.weight_decay", "optimizer.weight_decay", "wd"),
    ("clipping.max_norm", "grad_clip", "max_grad_norm", "gradient_clip_val"),
    ("autocast", "precision", "dtype", "bf16", "model.torch_dtype"),
    ("model", "hidden_size", "d_model", "num_layers", "n_head", "width", "parameters_total", "dropout"),
    ("dataset", "seq_len", "epochs", "max_steps"),
    ("seed", "data.seed", "random_state"),
    (
        "amsgrad",
        "capturable",
        "dampening",
        "scheduler.end_factor",
        "color",
        "use_batch_norm",
        "device_name",
        "eps",
        "betas",
    ),
)


@pytest.mark.parametrize("place", range(len(IN_ORDER)))
def test_every_parameter_that_people_choose_has_its_place_in_the_order(place: int) -> None:
    assert [place_of(name) for name in IN_ORDER[place]] == [place] * len(IN_ORDER[place])


def test_parameters_of_optimizers_and_machines_do_not_count_as_chosen() -> None:
    assert not any(map(is_chosen, IN_ORDER[-1]))
    assert all(map(is_chosen, (name for names in IN_ORDER[:-1] for name in names)))
