from __future__ import annotations

import pytest
from diagnosis.cards import made

from mlflow_stability.diagnosis.cohort.features import features_of
from mlflow_stability.diagnosis.cohort.seed_groups import groups_of_seeds
from mlflow_stability.diagnosis.parameters import differences_of, training_params

COMMANDS = (
    "train.py --seed {seed} --lr 0.1",
    "train.py --lr=0.1 --seed={seed} --output-dir 'runs/number {seed}'",
    "-m train trainer.seed={seed} optimizer.lr=0.1 +name=x",
    "train.py --run-name s{seed} --random_state {seed}",
    "train.py 'unfinished --seed {seed}",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_repetitions_that_were_started_by_command_lines_with_their_seed_are_repetitions(command: str) -> None:
    cards = [made(f"s{seed}", {"seed": seed, "lr": 0.1, "argv": command.format(seed=seed)}) for seed in range(3)]
    assert [len(group) for group in groups_of_seeds(cards)] == [3]
    assert [difference.name for difference in differences_of(cards)] == ["seed"]


def test_repetitions_on_several_machines_are_grouped_and_the_machines_are_listed() -> None:
    machines = [("Linux 6.1.0 x86_64", 8), ("Linux 5.15.0 x86_64", 64)]
    cards = [
        made(f"s{seed}", {"seed": seed, "lr": 0.1, "system": system, "processors": count, "threads": count // 2})
        for seed, (system, count) in enumerate(machines)
    ]
    assert [len(group) for group in groups_of_seeds(cards)] == [2]
    assert {difference.name for difference in differences_of(cards)} == {"seed", "system", "processors", "threads"}


def test_a_rate_in_both_the_script_and_the_optimizer_is_listed_once() -> None:
    same = [made(str(rate), {"lr": rate, "learning_rate": f"{rate:g}"}) for rate in (0.1, 0.01)]
    assert [difference.name for difference in differences_of(same)] == ["lr"]
    other = [made(str(rate), {"lr": rate, "learning_rate": 0.5 * rate}) for rate in (0.1, 0.01)]
    assert [difference.name for difference in differences_of(other)] == ["learning_rate", "lr"]
    alone = [made(str(rate), {"learning_rate": rate, "color": "x"}) for rate in (0.1, 0.01)]
    assert [difference.name for difference in differences_of(alone)] == ["learning_rate"]


def test_a_recorded_rate_is_listed_for_every_run_even_if_another_parameter_equals_it_in_some() -> None:
    """As a OneCycleLR does, whose `max_lr` is the rate; or a weight decay that happens to be equal."""
    for name in ("scheduler.max_lr", "encoder_lr", "lr"):
        cards = [
            made("a", {"learning_rate": 0.1, name: "1e-1"}),
            made("b", {"learning_rate": 0.01}),
            made("c", {"learning_rate": 0.02}),
        ]
        rate = differences_of(cards)[0]
        assert (rate.name, rate.values) == ("learning_rate", ("0.1", "0.01", "0.02"))
        assert [entry.name for entry in features_of(cards)[0]] == ["learning_rate"]


def test_two_rates_that_differ_in_some_run_are_both_listed() -> None:
    cards = [made("a", {"learning_rate": 0.1, "lr": 0.1}), made("b", {"learning_rate": 0.01, "lr": 0.02})]
    assert [difference.name for difference in differences_of(cards)] == ["learning_rate", "lr"]


ADAMW = {
    "optimizer": "AdamW",
    "learning_rate": 0.001,
    "betas": "(0.9, 0.999)",
    "eps": "1e-08",
    "amsgrad": False,
    "capturable": False,
    "decoupled_weight_decay": True,
}
SGD = {"optimizer": "SGD", "learning_rate": 0.1, "momentum": 0.9, "dampening": 0, "nesterov": False}


def test_defaults_of_an_optimizer_are_not_differences() -> None:
    differences = differences_of([made("a", ADAMW), made("b", SGD), made("c", ADAMW)])
    assert [entry.name for entry in differences] == ["learning_rate", "optimizer", "momentum"]
    assert not any(entry.name == "amsgrad" for entry in features_of([made("a", ADAMW), made("b", SGD)])[0])


def test_an_option_that_the_user_set_is_a_difference() -> None:
    differences = differences_of([made("a", ADAMW), made("b", SGD), made("c", ADAMW | {"amsgrad": True})])
    assert "amsgrad" in [entry.name for entry in differences]
    differences = differences_of([made("a", SGD), made("b", SGD | {"nesterov": True})])
    assert [entry.name for entry in differences] == ["nesterov"]
    some = {name: value for name, value in ADAMW.items() if name != "eps"}
    assert [difference.name for difference in differences_of([made("a", ADAMW), made("b", some)])] == ["eps"]


def test_arguments_of_a_schedule_are_listed_only_where_they_differ() -> None:
    linear = {"scheduler": "LinearLR", "scheduler.end_factor": 1.0, "scheduler.total_iters": 20}
    differences = differences_of([made("a", linear), made("b", {}), made("c", linear)])
    assert [entry.name for entry in differences] == ["scheduler"]
    differences = differences_of([made("a", linear), made("b", linear | {"scheduler.total_iters": 50})])
    assert [entry.name for entry in differences] == ["scheduler.total_iters"]


def test_of_the_settings_that_a_schedule_gives_the_optimizer_only_the_peak_is_listed() -> None:
    cycle = {"scheduler": "OneCycleLR", "max_lr": 0.003, "min_lr": 1.2e-8, "base_momentum": 0.85, "max_momentum": 0.95}
    differences = differences_of([made("a", {"learning_rate": 0.00012, **cycle}), made("b", {"learning_rate": 0.001})])
    assert [entry.name for entry in differences] == ["learning_rate", "max_lr", "scheduler"]


def test_trained_parameters_are_listed_beside_the_total_where_some_are_frozen() -> None:
    whole = [made(str(n), {"parameters_total": n, "parameters_trainable": n}) for n in (10, 20)]
    assert [difference.name for difference in differences_of(whole)] == ["parameters_total"]
    frozen = [*whole, made("c", {"parameters_total": 20, "parameters_trainable": 5})]
    assert [difference.name for difference in differences_of(frozen)] == ["parameters_total", "parameters_trainable"]


def test_parameters_that_people_choose_come_first() -> None:
    cards = [
        made("a", {"zeta": 1, "color": "x", "seed": 1, "width": 8, "lr": 0.1, "batch_size": 8}),
        made("b", {"zeta": 2, "color": "y", "seed": 2, "width": 9, "lr": 0.2, "batch_size": 9}),
        made("c", {"zeta": 2, "color": "y", "seed": 3, "width": 9, "lr": 0.3, "batch_size": 9}),
    ]
    order = ["lr", "batch_size", "width", "seed", "color", "zeta"]
    assert [difference.name for difference in differences_of(cards)] == order
    plotted = [entry.name for entry in features_of([*cards, *cards])[0]]
    assert plotted == [name for name in order if name != "seed"]


def test_a_difference_found_only_in_the_command_line_is_listed() -> None:
    cards = [made(str(depth), {"argv": f"train.py --depth {depth} --seed 1", "lr": 0.1}) for depth in (2, 4)]
    assert [len(group) for group in groups_of_seeds(cards)] == [1, 1]
    (row,) = differences_of(cards)
    assert (row.name, row.values) == ("argv", ("train.py --depth 2", "train.py --depth 4"))


def test_options_that_are_parameters_too_are_removed_from_the_command_line() -> None:
    params = {"lr": 0.1, "warmup_steps": 50, "argv": "train.py --lr 0.1 --warmup-steps 50 --base-rate 1e-1 --resume"}
    assert training_params(made("a", params))["argv"] == "train.py --resume"
    assert (
        training_params(made("a", {"argv": "train.py --offset -3 --depth 2"}))["argv"]
        == "train.py --offset -3 --depth 2"
    )


@pytest.mark.parametrize("name", ["output_dir", "exp_name", "job_id", "trainer.default_root_dir", "work-dir", "run_id"])
def test_a_parameter_that_only_names_a_run_is_not_a_difference(name: str) -> None:
    assert differences_of([made("a", {name: "x"}), made("b", {name: "y"})]) == ()
