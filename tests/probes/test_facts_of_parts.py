"""What a training says of itself, compared with what the script wrote."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler

from mlflow_stability.probes.performance.flop_count import batch_words
from mlflow_stability.probes.training_facts import (
    autocast_now,
    model_facts,
    optimizer_facts,
    scaler_facts,
    scheduler_facts,
    torch_facts,
)


def layer() -> nn.Linear:
    return nn.Linear(3, 2)


def test_facts_of_an_optimizer_include_all_its_numbers() -> None:
    facts = optimizer_facts([AdamW(layer().parameters(), lr=0.002, betas=(0.8, 0.95), weight_decay=0.1)])
    assert facts["optimizer"] == "AdamW"
    assert facts["learning_rate"] == "0.002"
    assert facts["betas"] == "(0.8, 0.95)"
    assert facts["eps"] == "1e-08"
    assert facts["weight_decay"] == "0.1"
    assert facts["amsgrad"] == "False"
    assert "params" not in facts
    assert "foreach" not in facts


def test_facts_of_further_groups_include_only_their_differences() -> None:
    first, two = layer(), layer()
    groups = [{"params": first.parameters()}, {"params": two.parameters(), "weight_decay": 0.0}]
    facts = optimizer_facts([SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)])
    assert facts["parameter_groups"] == "2"
    assert facts["nesterov"] == "True"
    assert {key: value for key, value in facts.items() if "group_" in key} == {"group_1.weight_decay": "0.0"}


def test_a_second_optimizer_has_names_of_its_own() -> None:
    facts = optimizer_facts([AdamW(layer().parameters(), lr=0.1), SGD(layer().parameters(), lr=0.2)])
    assert (facts["optimizer"], facts["learning_rate"]) == ("AdamW", "0.1")
    assert (facts["optimizer_1"], facts["optimizer_1.learning_rate"]) == ("SGD", "0.2")


def test_the_learning_rate_is_the_initial_one_of_the_schedule() -> None:
    optimizer = SGD(layer().parameters(), lr=0.5)
    lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=10)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
    assert optimizer_facts([optimizer])["learning_rate"] == "0.5"


def test_a_learning_rate_in_a_tensor_is_read_on_the_cpu_and_left_alone_elsewhere() -> None:
    parameters = [nn.Parameter(torch.zeros(2))]
    near = AdamW(parameters, lr=torch.tensor(0.25))
    assert optimizer_facts([near])["learning_rate"] == "0.25"
    near.param_groups[0]["lr"] = torch.tensor(0.25, device="meta")  # cannot be read at all
    assert "learning_rate" not in optimizer_facts([near])


def test_a_group_for_each_parameter_does_not_become_a_thousand_facts() -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1 + number} for number in range(1000)]
    facts = optimizer_facts([SGD(groups, lr=0.1)])
    assert facts["parameter_groups"] == "1000"
    assert len(facts) < 100


def test_facts_of_a_schedule_include_its_nested_schedules() -> None:
    optimizer = SGD(layer().parameters(), lr=0.5)
    parts = [
        lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=10),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=90, eta_min=0.001),
    ]
    whole = lr_scheduler.SequentialLR(optimizer, parts, milestones=[10])
    facts = scheduler_facts([*parts, whole], [optimizer])
    assert facts["scheduler"] == "SequentialLR(LinearLR, CosineAnnealingLR)"
    assert facts["scheduler.milestones"] == "(10)"
    assert facts["scheduler.0.start_factor"] == "0.01"
    assert (facts["scheduler.1.T_max"], facts["scheduler.1.eta_min"]) == ("90", "0.001")
    assert "scheduler_1" not in facts


def test_schedules_of_other_optimizers_are_ignored() -> None:
    first, two = SGD(layer().parameters(), lr=0.5), SGD(layer().parameters(), lr=0.5)
    schedulers = [lr_scheduler.ExponentialLR(two, 0.9), lr_scheduler.StepLR(first, 7)]
    facts = scheduler_facts(schedulers, [first, two])
    assert (facts["scheduler"], facts["scheduler.step_size"]) == ("StepLR", "7")
    assert (facts["optimizer_1.scheduler"], facts["optimizer_1.scheduler.gamma"]) == ("ExponentialLR", "0.9")
    assert not scheduler_facts(schedulers[:1], [first])


def test_the_schedule_of_an_optimizer_that_accelerate_wraps_is_its_own() -> None:
    from accelerate import Accelerator

    optimizer = SGD(layer().parameters(), lr=0.5)
    scheduler = lr_scheduler.StepLR(Accelerator(cpu=True).prepare(optimizer), 7)
    assert scheduler_facts([scheduler], [optimizer])["scheduler.step_size"] == "7"
    assert not scheduler_facts([scheduler], [SGD(layer().parameters(), lr=0.5)])


def warm_up(step: int, *, warmup_steps: int, total: int) -> float:
    return min(1.0, step / warmup_steps) * (1 - step / total)


def test_facts_of_a_schedule_include_its_function_and_arguments() -> None:
    optimizer = SGD(layer().parameters(), lr=0.5)
    scheduler = lr_scheduler.LambdaLR(optimizer, functools.partial(warm_up, warmup_steps=20, total=100))
    assert scheduler_facts([scheduler], [optimizer])["scheduler.lr_lambdas"] == "warm_up(warmup_steps=20, total=100)"


def test_what_changes_while_a_schedule_runs_is_no_fact() -> None:
    optimizer = SGD(layer().parameters(), lr=0.5)
    schedulers = [
        lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5),
        lr_scheduler.ReduceLROnPlateau(optimizer, patience=3),
        lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=50),
        lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.2, cycle_momentum=False),
        lr_scheduler.MultiStepLR(optimizer, [30, 80]),
    ]
    before = scheduler_facts(schedulers, [optimizer])
    optimizer.step()
    for _ in range(4):
        for scheduler in schedulers:
            scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    assert scheduler_facts(schedulers, [optimizer]) == before
    assert before["scheduler_1.patience"] == "3"


def test_a_model_is_counted_as_a_loop_counts_it() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10))
    model[1].requires_grad_(False)
    model[2].weight = model[0].weight  # tied: one parameter
    facts = model_facts([model], [])
    assert facts["model"] == "Sequential"
    assert facts["parameters_total"] == str(40 + 20 + 10)
    assert facts["parameters_trainable"] == str(40 + 10)
    assert (facts["parameter_types"], facts["devices"]) == ("float32", "cpu")


@pytest.mark.slow
def test_facts_name_the_wrappers_besides_the_model() -> None:
    compiled = torch.compile(nn.DataParallel(layer()))
    facts = model_facts([compiled], [])
    assert facts["model"] == "Linear"
    assert facts["wrapped_by"] == "OptimizedModule, DataParallel"
    in_place = layer()
    in_place.compile()
    assert model_facts([in_place], [])["wrapped_by"] == "compile"
    inner = nn.Sequential()
    inner.add_module("body", layer())
    assert model_facts([inner], [])["model"] == "Sequential"


def test_two_models_and_mixed_types_have_separate_facts() -> None:
    mixed = nn.Sequential(nn.Linear(7, 7, bias=False).bfloat16(), nn.Linear(1, 1, bias=False))
    facts = model_facts([layer(), mixed], [])
    assert (facts["model"], facts["model_1"]) == ("Linear", "Sequential")
    assert facts["model_1.parameter_types"] == "bfloat16 98 %, float32 2 %"


def test_without_a_module_the_optimizers_are_counted() -> None:
    facts = model_facts([], [SGD([nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(2, 2))], lr=0.1)])
    assert "model" not in facts
    assert facts["parameters_total"] == "9"


def test_what_torch_says_of_itself_draws_nothing_and_switches_nothing() -> None:
    torch.manual_seed(1234)
    before = torch.random.get_rng_state(), random.getstate()
    facts = torch_facts()
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert facts["seed"] == "1234"
    assert facts["torch"] == torch.__version__
    assert facts["deterministic_algorithms"] == "False"
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch_facts()["deterministic_algorithms"] == "warn only"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch has the newer switch since 2.9")
def test_a_script_may_use_the_newer_switch_for_precision() -> None:
    torch.backends.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        assert torch_facts()["float32_matmul"] == "ieee"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.fp32_precision = "none"
    assert torch_facts()["float32_matmul"]


def test_facts_have_the_autocast_that_is_active_now() -> None:
    assert autocast_now() == ""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert autocast_now() == "cpu bfloat16"


def test_facts_of_a_loss_scaler_include_its_settings() -> None:
    assert scaler_facts(None) == {}
    facts = scaler_facts(torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=200))
    assert (facts["loss_scaling.initial_scale"], facts["loss_scaling.growth_interval"]) == ("1024.0", "200")


def test_a_batch_is_described_by_types_and_shapes() -> None:
    tokens, mask = torch.zeros(8, 128, dtype=torch.int64), torch.zeros(8, 128, dtype=torch.bool)
    assert batch_words((tokens,), {"attention_mask": mask}) == "int64[8, 128], bool[8, 128]"
    assert batch_words(({"x": torch.zeros(2)}, 3, None), {}) == "float32[2]"
    assert batch_words((), {}) == ""
    assert batch_words(tuple(torch.zeros(1) for _ in range(20)), {}).endswith("float32[1], …")


def test_facts_say_how_much_of_a_model_is_compiled() -> None:
    def compiled_fact(model: nn.Module) -> str:
        return model_facts([model], [])["model.compiled"]

    plain, in_place, block = nn.Sequential(layer()), nn.Sequential(layer()), nn.Sequential(layer(), layer())
    in_place.compile()
    block[0] = torch.compile(block[0])
    assert (
        compiled_fact(plain),
        compiled_fact(torch.compile(plain)),
        compiled_fact(in_place),
        compiled_fact(block),
    ) == ("no", "whole", "whole", "in part")
    assert compiled_fact(nn.DataParallel(torch.compile(plain))) == "whole"
    assert model_facts([plain, in_place], [])["model_1.compiled"] == "whole"
