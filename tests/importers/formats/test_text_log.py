from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from importers.reading import curve, history, metric, steps

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.formats.text_log import _is_sentence


def test_the_listing_of_the_source_in_front_of_a_log_is_no_log(tmp_path: Path) -> None:
    code = "import torch\nloss = 0.0\nfor step in range(10): loss: float = 1.0\nlr = 3e-4\nassert loss == 0.5, 'nan'\n"
    run = history(
        tmp_path, code + "".join(f"step:{n}/9 train_loss:{5 - n / 4} train_time:{n}ms\n" for n in range(1, 10))
    )
    assert [entry.name for entry in run.metrics] == ["train_loss", "train_time"]
    assert steps(run, "train_loss") == list(range(1, 10))


def test_a_banner_is_no_data(tmp_path: Path) -> None:
    banner = "params:24405641 L:6 d:512\n  BATCH  : 16384 tok/step  seq=2048\nwarmup:1/3\nwarmup:2/3\nwarmup:3/3\n"
    run = history(tmp_path, banner + "".join(f"step:{n}/90 loss:{7 / n} t:10ms\n" for n in range(1, 9)))
    assert {entry.name for entry in run.metrics} == {"loss", "t"}
    assert metric(run, "t").meaning.bookkeeping


def test_a_last_evaluation_behind_the_training_is_no_point_of_the_curve(tmp_path: Path) -> None:
    log = (
        "".join(f"step:{n} val_loss:{7 / n}\n" for n in range(1, 9))
        + "final_int8_roundtrip val_loss:99 eval_time:3ms\n"
    )
    assert len(curve(history(tmp_path, log), "val_loss")) == 8


def test_lines_without_a_step_count_where_they_come_again(tmp_path: Path) -> None:
    log = "".join(f"step {n * 10}: loss {9 / n:.2f}\nValidation loss: {10 / n:.2f}\n" for n in range(1, 5))
    run = history(tmp_path, log)
    assert steps(run, "Validation loss") == [10, 20, 30, 40]
    assert metric(run, "Validation loss").meaning.quantity == "val_loss"


def test_epochs_named_on_lines_of_their_own_date_what_follows(tmp_path: Path) -> None:
    log = "".join(
        f"Epoch {n}/3\n 10/10 [======] - 3s 20ms/step - loss: {1 / n:.3f} - val_loss: {2 / n:.3f}\n" for n in (1, 2, 3)
    )
    run = history(tmp_path, log)
    assert [value for _, value in curve(run, "loss")] == [1.0, 0.5, 0.333]
    assert steps(run, "loss") == steps(run, "val_loss") == sorted(set(steps(run, "loss")))


@pytest.mark.parametrize("form", ["Epoch: [{e}][{b}/40] ", "epoch {e} | itr {b}/40 | ", "epoch={e} it={b} "])
def test_steps_that_restart_in_each_epoch_become_increasing_steps(form: str, tmp_path: Path) -> None:
    places = [(e, b) for e in range(3) for b in (0, 10, 20, 30)]
    run = history(tmp_path, "".join(f"{form.format(e=e, b=b)}Loss {3 - e - b / 100:.3f}\n" for e, b in places))
    assert steps(run, "Loss") == sorted(steps(run, "Loss"))
    assert len(set(steps(run, "Loss"))) == 12
    assert metric(run, "Loss").series.attempts.max() == 0
    assert "restart in each epoch" in run.notes[0]


def test_the_first_values_of_a_mean_that_begins_again_in_each_epoch_are_left_out(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.5, (12, 50))
    means = 2 + noise.cumsum(axis=1) / np.arange(1, 51)
    lines = [f"epoch {e} step {s}/50 loss {means[e, s]:.4f}" for e in range(12) for s in range(0, 50, 5)]
    run = history(tmp_path, "\n".join(lines))
    assert len(metric(run, "loss").series) == 12 * 10 - 11
    assert "early values there are left out: loss." in " ".join(run.notes)
    means[7, 0] = math.nan
    lines = [f"epoch {e} step {s}/50 loss {means[e, s]:.4f}" for e in range(12) for s in range(0, 50, 5)]
    assert np.isnan(metric(history(tmp_path, "\n".join(lines)), "loss").series.values).sum() == 1
    lines = [f"epoch {e} step {s}/50 loss {2 + noise[e, s]:.4f}" for e in range(12) for s in range(0, 50, 5)]
    assert len(metric(history(tmp_path, "\n".join(lines)), "loss").series) == 120
    lines = [f"epoch {e} step {s}/50 loss {means[e, s]:.4f}" for e in range(6) for s in range(50)]
    assert len(metric(history(tmp_path, "\n".join(lines)), "loss").series) == 6 * 50 - 5 * 5
    lines = [f"epoch {e} step {s}/50 loss {means[e % 12, s]:.4f}" for e in range(60) for s in range(0, 50, 5)]
    assert np.isfinite(metric(history(tmp_path, "\n".join(lines)), "loss").series.values).sum() == 60


def test_a_line_without_a_step_is_no_point_of_what_lines_with_steps_log_by_the_same_name(tmp_path: Path) -> None:
    lines = [
        f"epoch {e} iter {i}/90, loss: {3 - e / 9 - i / 900:.3f}" + ("\nloss: 9.5, miou: 0.3" if i == 80 else "")
        for e in range(9)
        for i in range(0, 90, 10)
    ]
    run = history(tmp_path, "\n".join(lines))
    assert max(value for _, value in curve(run, "loss")) == 3.0
    assert len(metric(run, "miou").series) == 9


def test_what_is_left_on_a_progress_bar_that_has_not_begun_is_no_value_of_its_epoch(tmp_path: Path) -> None:
    lines = []
    for epoch in range(1, 4):
        lines += [
            f"{n * 10:3d}%|###    | {n}/10 [00:0{n}<00:09, 1.0it/s, loss={5 / (10 * epoch + n):.4f}]"
            for n in range(1, 10)
        ]
        lines.append(f"  0%|          | 0/10 [00:00<?, ?it/s, loss={5 / (10 * epoch + 9):.4f}]")
    assert len(metric(history(tmp_path, "\n".join(lines)), "loss").series) == 27


def test_parts_of_epochs_that_begin_again_are_another_training(tmp_path: Path) -> None:
    first = "".join(f"{{'loss': {2 / n:.3f}, 'epoch': {0.22 * n:.2f}}}\n" for n in range(1, 14))
    evaluations = "{'eval_loss': 0.9, 'epoch': 0.1}\n{'eval_loss': 0.8, 'epoch': 0.2}\n"
    run = history(tmp_path, first + evaluations + first)
    assert metric(run, "loss").series.attempts.tolist() == [0] * 13 + [1] * 13
    assert metric(run, "eval_loss").series.attempts.tolist() == [1, 1]


def test_a_bar_that_keras_draws_for_an_evaluation_is_no_point_of_the_training(tmp_path: Path) -> None:
    bar = "{n}/{n} [==============================] - 1s 5ms/step - loss: {loss:.4f} - accuracy: 0.9{more}\n"
    epochs = [
        f"Epoch {epoch}/9\n" + bar.format(n=50, loss=1 / epoch, more=f" - val_loss: {2 / epoch:.4f}")
        for epoch in range(1, 10)
    ]
    run = history(tmp_path, "".join(epochs) + bar.format(n=13, loss=0.9, more=""))
    assert curve(run, "loss")[-1] == (9, 0.1111)
    assert curve(run, "val_loss")[-1] == (9, 0.2222)


def test_several_runs_in_one_file_are_several_attempts(tmp_path: Path) -> None:
    text = "step:0/40 val_loss:11.0\n" + "".join(f"step:{n}/40 train_loss:{5 / n}\n" for n in range(1, 41))
    run = history(tmp_path, text * 3)
    assert metric(run, "train_loss").series.attempts.tolist() == [0] * 40 + [1] * 40 + [2] * 40
    assert metric(run, "val_loss").series.attempts.tolist() == [0, 1, 2]
    assert "3 runs or attempts" in " ".join(run.notes)


def test_a_final_test_at_step_0_is_no_restart(tmp_path: Path) -> None:
    log = (
        "".join(f"step {n} loss {9 / n:.2f} val_loss {8 / n:.2f}\n" for n in range(100, 1300, 100))
        + "step 0 val_loss 0.02\n"
    )
    run = history(tmp_path, log)
    assert metric(run, "loss").series.attempts.max() == 0
    assert curve(run, "val_loss")[-1] == (1200, 0.02)


def test_a_last_value_of_an_untrained_model_at_step_0_is_not_the_end(tmp_path: Path) -> None:
    log = "".join(f"step {n} loss {9 / (n + 1):.2f} val_loss {8 / (n + 1):.2f}\n" for n in range(12))
    run = history(tmp_path, f"{log}step 0 val_loss 8.1\n")
    assert curve(run, "val_loss")[-1] == (11, 0.67)


def test_a_table_of_keys_and_values_is_a_row(tmp_path: Path) -> None:
    rule = "-" * 24 + "\n"
    rows = [
        f"| loss      | {9 / n:<8.3g} |\n| lr        | 0.0001   |\n| step      | {n * 20:<8} |\n" for n in range(1, 6)
    ]
    run = history(tmp_path, "Logging to /tmp\n" + rule + (rule + rule).join(rows) + rule)
    assert run.format == "key_value_table"
    assert steps(run, "loss") == [20, 40, 60, 80, 100]


def test_sections_of_a_table_give_their_names_to_what_is_in_them(tmp_path: Path) -> None:
    table = "---------------\n| rollout/ | |\n|    ep_rew_mean | {0} |\n| time/ | |\n|    total_timesteps | {0}000 |\n"
    table += "| train/ | |\n|    loss | 0.{0} |\n"
    run = history(tmp_path, "".join(table.format(n) for n in range(1, 4)))
    assert curve(run, "train/loss") == [(1000, 0.1), (2000, 0.2), (3000, 0.3)]
    assert not metric(run, "rollout/ep_rew_mean").meaning.is_known


def test_a_table_with_a_header_is_read_by_its_columns(tmp_path: Path) -> None:
    log = "epoch     train_loss  valid_loss  accuracy  time\n" + "".join(
        f"{n}  {2 / (n + 1):.3f}  {3 / (n + 1):.3f}  0.5  00:1{n}\n" for n in range(4)
    )
    run = history(tmp_path, log)
    assert curve(run, "valid_loss") == [(0, 3.0), (1, 1.5), (2, 1.0), (3, 0.75)]


def test_fairseq_writes_numbers_as_text_and_says_of_overflows(tmp_path: Path) -> None:
    def inner(n: int, loss: float) -> str:
        return (
            '2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "update": 0.0, '
            f'"loss": "{loss}", "num_updates": "{n}", "lr": "2e-05", "gnorm": "20.7", "loss_scale": "4"}}\n'
        )

    skipped = "2021-03-08 12:33:12 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, "
    skipped += "setting loss scale to: 2.0\n"
    end = (
        '2021-03-08 12:43:15 | INFO | valid | {"epoch": 1, "valid_loss": "17.9", "valid_num_updates": "3"}\n'
        '2021-03-08 12:43:15 | INFO | train | {"epoch": 1, "train_loss": "19.3", "train_num_updates": "3"}\n'
        "2021-03-08 12:43:15 | INFO | fairseq_cli.train | done training in 798.6 seconds\n"
    )
    run = history(tmp_path, inner(1, 16.5) + skipped + inner(2, 25.2) + inner(3, 18.1) + end)
    assert run.format == "fairseq"
    assert curve(run, "loss") == [(1, 16.5), (2, 25.2), (3, 18.1)]
    assert (metric(run, "loss").meaning.quantity, metric(run, "train_loss").meaning.is_known) == ("loss", False)
    assert [(finding.kind, finding.step, finding.metrics) for finding in run.reported] == [
        ("step_skipped", 1, {"line": 2.0, "loss_scale": 2.0})
    ]
    assert "the loss scale is being calibrated" in " ".join(run.notes)
    assert run.outcome == "finished"


def test_megatron_prints_no_loss_where_every_iteration_was_skipped(tmp_path: Path) -> None:
    def iteration(n: int, loss: str) -> str:
        return (
            f" iteration {n:8}/  500 | consumed samples: {n * 16} | learning rate: 1.5E-04 | {loss}loss scale: -1.0 | "
            "number of skipped iterations: 0 |\n"
        )

    run = history(
        tmp_path, iteration(100, "") + "".join(iteration(n, f"lm loss: {9 / n:.3E} | ") for n in (200, 300, 400))
    )
    assert steps(run, "lm loss") == [200, 300, 400]
    assert steps(run, "learning rate") == [100, 200, 300, 400]
    assert metric(run, "lm loss").meaning.quantity == "loss"
    assert metric(run, "consumed samples").meaning.bookkeeping
    assert run.reported == ()


def test_printed_dictionaries_of_a_trainer_are_rows(tmp_path: Path) -> None:
    log = "".join(
        f"{{'loss': {9 / n:.2f}, 'learning_rate': '{n}.000e-05', 'grad_norm': nan, 'epoch': {n / 4}}}\n"
        for n in range(1, 9)
    )
    log += "{'train_runtime': 12.5, 'train_loss': 1.5, 'epoch': 2.0}\n"
    run = history(tmp_path, log)
    assert [value for _, value in curve(run, "learning_rate")] == [float(f"{n}e-05") for n in range(1, 9)]
    assert all(math.isnan(value) for _, value in curve(run, "grad_norm"))
    assert run.ordinal_steps
    assert steps(run, "loss") == list(range(8))


def test_colours_carriage_returns_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    rows = [f"\x1b[32mstep {n}\x1b[0m loss \x1b[1;31m{9 / n:.3f}\x1b[0m" for n in range(1, 9)]
    assert steps(history(tmp_path, "\r\n".join(rows)), "loss") == list(range(1, 9))
    assert steps(history(tmp_path, "\r".join(rows)), "loss") == list(range(1, 9))


def test_the_last_lines_decide_how_a_training_ended(tmp_path: Path) -> None:
    log = "".join(f"step {n} loss {9 / n:.3f}\n" for n in range(1, 9))
    died = "Traceback (most recent call last):\n  File 'x.py', line 3, in f\n"
    endings = {
        "RuntimeError: shapes do not match\n": "crashed",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n": "out_of_memory",
        "KeyboardInterrupt\n": "interrupted",
        "  exitcode  : -9 (pid: 58994)\n  traceback : Signal 9 (SIGKILL) received by PID 58994\n": "killed",
    }
    for words, outcome in endings.items():
        run = history(tmp_path, log + died + words)
        assert (run.outcome, bool(run.outcome_detail)) == (outcome, True)
        assert history(tmp_path, log + died + words + "step 9 loss 1.0\n").outcome == ""


def test_a_log_without_any_step_is_numbered_and_says_so(tmp_path: Path) -> None:
    run = history(tmp_path, "starting\n" + "".join(f"loss: {9 / n:.3f} acc: 0.5\n" for n in range(1, 9)))
    assert run.ordinal_steps
    assert steps(run, "loss") == list(range(8))
    assert "numbered in their order" in " ".join(run.notes)


@pytest.mark.parametrize("line", ["=== Fold {}/3 ===", "Training FOLD {}", "fold_{}"])
def test_values_are_numbered_from_0_again_in_each_fold(tmp_path: Path, line: str) -> None:
    losses = [9 / n for n in range(1, 9)]
    log = "".join(
        f"{line.format(fold)}\nlr: 0.1\n" + "".join(f"Loss: {loss:.3f}\n" for loss in losses) for fold in (1, 2, 3)
    )
    series = metric(history(tmp_path, log), "Loss").series
    assert series.steps.tolist() == [*range(8)] * 3
    assert series.attempts.tolist() == [0] * 8 + [1] * 8 + [2] * 8


def test_one_value_of_each_fold_is_a_curve_of_folds(tmp_path: Path) -> None:
    run = history(tmp_path, "".join(f"Fold {fold}\nLoss: {9 / fold:.3f}\n" for fold in range(1, 9)))
    assert metric(run, "Loss").series.attempts.max() == 0


def test_a_message_about_the_best_validation_so_far_is_no_curve(tmp_path: Path) -> None:
    log = "".join(
        f"Epoch {n} loss: {9 / n}\nMetric val_loss improved by 0.0{n} >= min_delta = 0.0.\n" for n in range(1, 9)
    )
    log += "".join(f"Epoch {n}: val_loss improved from {n}.5 to {n}.4, saving model\n" for n in range(9, 1, -1))
    assert [entry.name for entry in history(tmp_path, log).metrics] == ["loss"]


@pytest.mark.parametrize(
    "message",
    [
        "Validation loss decreased (inf --> 0.9).  Saving model ...",
        "INFO - Negative Log-Loss decrease from inf to 0.9, saving to best.tar",
        "Val loss improved: inf -> 0.9",
    ],
)
def test_a_message_about_an_improvement_from_infinity_is_no_infinite_loss(tmp_path: Path, message: str) -> None:
    later = message.replace("inf", "1.0")
    log = "".join(f"Epoch {n} loss: {9 / n}\n{message if n == 1 else later}\n" for n in range(1, 9))
    assert [entry.name for entry in history(tmp_path, log).metrics] == ["loss"]


@pytest.mark.parametrize("name", ["Avg Reward", "Accuracy"])
def test_a_log_of_results_alone_is_a_curve(tmp_path: Path, name: str) -> None:
    run = history(tmp_path, "".join(f"INFO:root:Game {n} | {name}: {n * 1.5:.2f} | Epsilon: 0.9\n" for n in range(9)))
    assert [value for _, value in curve(run, name)] == [n * 1.5 for n in range(9)]
    with pytest.raises(UnreadableLogError, match="no metric has two or more values"):
        history(tmp_path, "".join(f"INFO:root:Request {n} | Latency: {n} | Size: 9\n" for n in range(9)))


def test_values_between_the_names_of_epochs_are_numbered(tmp_path: Path) -> None:
    log = "".join(f"Epoch {epoch}\n" + f"loss: 0.{epoch}\n" * 10 for epoch in range(1, 4))
    run = history(tmp_path, log)
    assert run.ordinal_steps
    assert steps(run, "loss") == list(range(30))


def test_only_the_validation_names_its_step_and_the_loss_is_read_all_the_same(tmp_path: Path) -> None:
    log = "".join("".join(f"loss: 1.{k}\n" for k in range(5)) + f"step {n} accuracy 0.{n}\n" for n in range(1, 9))
    assert len(curve(history(tmp_path, log), "loss")) == 40


def keras_bars(epochs: int, bar: str) -> str:
    """What Keras prints: the mean of the epoch so far, over and over, and at its end that of the epoch."""
    out = ""
    for epoch in range(1, epochs + 1):
        out += f"Epoch {epoch}/{epochs}\n"
        lines = [bar.format(n=n, loss=f"{9 / epoch + 5 / n:.4f}") for n in range(1, 20)]
        done = bar.replace("ETA: 3s", "1s 50ms/step").format(n=20, loss=f"{9 / epoch:.4f} - val_loss: {10 / epoch:.4f}")
        out += "".join(f"{line}{chr(8) * len(line)}\r" for line in lines) + done + "\n"
    return out


@pytest.mark.parametrize(
    "bar",
    [
        "{n:2d}/20 [===>.........] - ETA: 3s - loss: {loss}",
        "\x1b[1m{n}/20\x1b[0m \x1b[32m━━━━━━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m3s\x1b[0m 50ms/step - loss: {loss}",
    ],
    ids=["2", "3"],
)
def test_of_the_means_that_keras_shows_those_of_whole_epochs_count(tmp_path: Path, bar: str) -> None:
    run = history(tmp_path, keras_bars(9, bar))
    assert curve(run, "loss") == [(epoch, round(9 / epoch, 4)) for epoch in range(1, 10)]
    assert curve(run, "val_loss") == [(epoch, round(10 / epoch, 4)) for epoch in range(1, 10)]
    assert len(curve(history(tmp_path, keras_bars(1, bar)), "loss")) == 20


@pytest.mark.parametrize(
    ("line", "says_more"),
    [
        ("step 10 loss: 2.31 -> best 2.30 | lr 1e-3", False),
        ("INFO step 10 loss 2.31 temperature 0.7 rollout 5", False),
        ("step 10 high loss 2.31 gradient 1.0", False),
        ("Loss=8.2340 > 2.0x avg", True),
        ("loss: 8.2 exceeds 2 times its mean", True),
        ("High gradient norm: 152.3", True),
        ("Loss exploded: 1e9", True),
        ("ROLLBACK TRIGGERED at step 12", True),
        ("rolling back to step 900", True),
        ("STOP TRAINING: loss 8.2", True),
    ],
)
def test_lines_of_numbers_are_distinguished_from_sentences_with_numbers(line: str, says_more: bool) -> None:
    """What says more is read line by line, which takes a hundred times as long."""
    assert _is_sentence(line) is says_more


def paddle_log(between: str = "Epoch {next}/3\n") -> str:
    """Two epochs of 40 steps, each followed by an evaluation that counts 20 steps of its own."""
    lines = []
    for epoch in (1, 2):
        lines += [f"step {n}/40 - loss: {3 - epoch + n / 1000:.3f}\n" for n in (10, 20, 30, 40)]
        lines += ["Eval begin...\n", *(f"step {n}/20 - loss: {9 - epoch + n / 1000:.3f}\n" for n in (10, 20))]
        lines.append(between.format(next=epoch + 1))
    return "Epoch 1/3\n" + "".join(lines)


def test_losses_of_an_evaluation_that_a_line_begins_are_those_of_held_out_data(tmp_path: Path) -> None:
    run = history(tmp_path, paddle_log())
    assert [value for _, value in curve(run, "loss")] == [2.01, 2.02, 2.03, 2.04, 1.01, 1.02, 1.03, 1.04]
    assert metric(run, "eval loss").meaning.quantity == "val_loss"
    assert len(steps(run, "eval loss")) == 4


def test_an_evaluation_ends_where_the_step_goes_on(tmp_path: Path) -> None:
    log = "".join(f"step {n} loss: {5 / n:.3f}\n" + ("Eval begin...\n" if n == 5 else "") for n in range(1, 11))
    assert steps(history(tmp_path, log), "loss") == list(range(1, 11))


def test_the_number_of_all_epochs_in_a_banner_is_not_the_epoch_of_the_first_step(tmp_path: Path) -> None:
    banner = "batch_size: 64, epochs: 20, print_interval: 10\n"
    log = "".join(f"epoch: {e}, batch_id: {b}, loss: {3 - e - b / 100:.3f}\n" for e in range(3) for b in (0, 10, 20))
    run = history(tmp_path, banner + log)
    assert steps(run, "loss") == [0, 10, 20, 30, 40, 50, 60, 70, 80]


def test_an_epoch_in_brackets_behind_its_name_is_read(tmp_path: Path) -> None:
    log = "".join(f"Epoch[{e}] Iteration[{n}/100] Loss: {9 - e - n / 99:.3f}\n" for e in (1, 2, 3) for n in (40, 80))
    run = history(tmp_path, log)
    assert steps(run, "Loss") == [140, 180, 240, 280, 340, 380]
    assert not any(metric(run, "Loss").series.attempts)


def test_the_time_that_an_epoch_cost_is_no_loss(tmp_path: Path) -> None:
    log = "".join(f"Epoch[{n}] Batch [20] Train-SmoothL1={9 - n}\nEpoch[{n}] Time cost={106 + n}\n" for n in range(8))
    run = history(tmp_path, log)
    assert {loss.name for loss in run.of("loss")} == {"Train-SmoothL1"}


@pytest.mark.parametrize("form", ["epoch: {} logs: {{'loss': {:.4f}}}\n", "[#epoch={:06d}], loss={:.4f}\n"])
def test_an_epoch_in_front_of_the_values_is_read(tmp_path: Path, form: str) -> None:
    run = history(tmp_path, "".join(form.format(n, 4 / n) for n in range(3, 12)))
    assert steps(run, "loss") == list(range(3, 12))
    assert run.step_unit == "epoch"


def test_a_progress_bar_before_the_training_does_not_number_its_values(tmp_path: Path) -> None:
    bar = "".join(f"Map: {n * 10} examples\n" for n in range(40))
    run = history(tmp_path, bar + "".join(f"{{'loss': {4 / n:.4f}, 'epoch': {n / 20}}}\n" for n in range(1, 13)))
    assert steps(run, "loss") == list(range(12))


def test_a_summary_of_each_epoch_is_read_in_each_of_several_trainings(tmp_path: Path) -> None:
    log = "".join(
        f"[Epoch {epoch} Batch 30/90] avg loss {3.1 / (epoch + 1):.3f}\n"
        f"[Epoch {epoch} Batch 60/90] avg loss {3 / (epoch + 1):.3f}\n"
        f"[Epoch {epoch}] train avg loss {3 / (epoch + 1):.3f}, dev avg loss {4 / (epoch + 1):.3f}\n"
        for _ in range(6)
        for epoch in range(10)
    )
    assert len(metric(history(tmp_path, log), "dev avg loss").series) == 60


def test_the_last_value_before_a_nan_is_kept_of_a_mean_that_begins_again_in_each_epoch(tmp_path: Path) -> None:
    lines = [
        f"Epoch {epoch} iteration {batch}/100: training loss {2 / epoch * (1 + 5 / batch):.4f}\n"
        for epoch in range(1, 9)
        for batch in range(10, 101, 10)
    ]
    lines = [*lines[:71], *(line.split("loss")[0] + "loss nan\n" for line in lines[71:])]
    run = history(tmp_path, "".join(lines))
    assert "begins again in each epoch" in run.notes[0]
    values = metric(run, "training loss").series.values
    assert values[np.isfinite(values)][-1] == pytest.approx(2 / 8 * 1.5)
