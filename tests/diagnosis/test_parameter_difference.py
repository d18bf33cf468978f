from __future__ import annotations

import pytest
from diagnosis.cards import made

from mlflow_stability.diagnosis.parameter_difference import differences_of, told_params
from mlflow_stability.diagnosis.seed_groups import groups_of_seeds

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
    assert [each.name for each in differences_of(cards)] == ["seed"]


def test_repetitions_on_several_machines_are_repetitions_and_the_machines_are_told() -> None:
    machines = [("Linux 6.1.0 x86_64", 8), ("Linux 5.15.0 x86_64", 64)]
    cards = [
        made(f"s{seed}", {"seed": seed, "lr": 0.1, "system": system, "processors": count, "threads": count // 2})
        for seed, (system, count) in enumerate(machines)
    ]
    assert [len(group) for group in groups_of_seeds(cards)] == [2]
    assert {each.name for each in differences_of(cards)} == {"seed", "system", "processors", "threads"}


def test_a_rate_that_the_script_tells_and_the_optimizer_has_is_told_once() -> None:
    same = [made(str(rate), {"lr": rate, "learning_rate": f"{rate:g}"}) for rate in (0.1, 0.01)]
    assert [each.name for each in differences_of(same)] == ["lr"]
    other = [made(str(rate), {"lr": rate, "learning_rate": 0.5 * rate}) for rate in (0.1, 0.01)]
    assert [each.name for each in differences_of(other)] == ["learning_rate", "lr"]
    alone = [made(str(rate), {"learning_rate": rate, "color": "x"}) for rate in (0.1, 0.01)]
    assert [each.name for each in differences_of(alone)] == ["learning_rate"]


def test_what_a_command_line_alone_tells_is_told() -> None:
    cards = [made(str(depth), {"argv": f"train.py --depth {depth} --seed 1", "lr": 0.1}) for depth in (2, 4)]
    assert [len(group) for group in groups_of_seeds(cards)] == [1, 1]
    (row,) = differences_of(cards)
    assert (row.name, row.values) == ("argv", ("train.py --depth 2", "train.py --depth 4"))


def test_a_command_line_does_not_say_again_what_parameters_say() -> None:
    params = {"lr": 0.1, "warmup_steps": 50, "argv": "train.py --lr 0.1 --warmup-steps 50 --base-rate 1e-1 --resume"}
    assert told_params(made("a", params))["argv"] == "train.py --resume"
    assert (
        told_params(made("a", {"argv": "train.py --offset -3 --depth 2"}))["argv"] == "train.py --offset -3 --depth 2"
    )


@pytest.mark.parametrize("name", ["output_dir", "exp_name", "job_id", "trainer.default_root_dir", "work-dir", "run_id"])
def test_what_only_names_a_run_is_no_difference(name: str) -> None:
    assert differences_of([made("a", {name: "x"}), made("b", {name: "y"})]) == ()
