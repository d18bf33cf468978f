"""What tools print that are not treated elsewhere: for each a few lines, and the curve that is in them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from importers.reading import history, metric

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity

N = range(1, 9)
EPOCHS = [(epoch, batch) for epoch in (1, 2, 3) for batch in (10, 20, 30)]

LOGS: dict[str, tuple[str, str, str, list[int]]] = {
    "YOLO on the terminal": (
        "     Epoch   gpu_mem       box       obj    labels  img_size\n"
        + "".join(
            f"     {n}/9     3.42G   0.0{n}   0.02   33   640: 100%|####| 10/10 [00:01<00:00,  5.6it/s]\n" for n in N
        ),
        "box",
        "box",
        list(N),
    ),
    "DeepSpeed": (
        "".join(f"steps: {n * 10} loss: {9 / n:.4f} iter time (s): 0.345 samples/sec: 92.8\n" for n in N),
        "loss",
        "loss",
        [n * 10 for n in N],
    ),
    "Darknet": (
        "".join(
            f" {n}: {9 / n:.4f}, {9 / n:.4f} avg loss, 0.001000 rate, 2.10 seconds, {n * 64} images\n"
            "Region 82 Avg IOU: 0.79, Class: 0.8, Obj: 0.7, No Obj: 0.005, .5R: 1.0, .75R: 0.5,  count: 3\n"
            for n in N
        ),
        "loss",
        "loss",
        list(N),
    ),
    "results.txt of YOLOv5 and YOLOv7": (
        "".join(
            f"  {n}/9  8.42G  0.0{n}  0.002  0.001  0.0{n}3  2  640  0.9  0.8  0.7  0.5  0.04  0.03  {0.3 / n:.4f}\n"
            for n in N
        ),
        "val/cls_loss",
        "val_loss",
        list(N),
    ),
    "Caffe": (
        "".join(
            f"I0613 17:29:58.1 18 solver.cpp:228] Iteration {n * 500}, loss = {9 / n:.4f}\n"
            "I0613 17:29:58.1 18 solver.cpp:244]     Train net output #0: accuracy = 0.1\n"
            f"I0613 17:29:58.1 18 solver.cpp:244]     Train net output #1: loss = {80 + n} (* 0.01 = 0.8 loss)\n"
            for n in N
        ),
        "loss",
        "loss",
        [n * 500 for n in N],
    ),
    "an estimator of TensorFlow": (
        "".join(
            f"INFO:tensorflow:loss = {9 / n:.4f}, step = {n * 100 + 1} (3.2 sec)\n"
            f"INFO:tensorflow:Saving dict for global step {n * 100}: acc = 0.9, global_step = {n * 100}, loss = 0.{n}\n"
            for n in N
        ),
        "eval loss",
        "val_loss",
        [n * 100 for n in N],
    ),
    "YOLOv3 in PyTorch": (
        "".join(
            f"[Epoch 0/30, Batch {n}/7329] [Losses: x 0.27, total {9 / n:.4f}, recall: 0.1, precision: 0.2]\n"
            for n in N
        ),
        "total loss",
        "loss",
        list(N),
    ),
    "MMEngine": (
        "".join(
            f"2023/01/01 10:00:00 - mmengine - INFO - Epoch(train)  [1][{n * 50}/1000]  lr: 2.0000e-02  eta: 1:00:00  "
            f"time: 0.5  memory: 5000  loss: {9 / n:.4f}  loss_cls: 0.5\n"
            for n in N
        ),
        "loss",
        "loss",
        [n * 50 for n in N],
    ),
    "detectron2 on the terminal": (
        "".join(
            f"[01/02 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: {n * 20 - 1}  total_loss: {9 / n:.3f}  "
            "lr: 0.00025  max_mem: 5000M\n"
            for n in N
        ),
        "total_loss",
        "loss",
        [n * 20 - 1 for n in N],
    ),
    "the beginners' tutorial of PyTorch": (
        "".join(
            f"Epoch {e}\n-----------------------\nloss: 2.{e}  [   64/60000]\nloss: 1.{e}  [ 6464/60000]\n"
            f"Test Error: \n Accuracy: {40 + e}.1%, Avg loss: 1.{e} \n"
            for e in (1, 2, 3)
        ),
        "test Avg loss",
        "val_loss",
        [e * 60_000 + 6464 for e in (1, 2, 3)],
    ),
    "a table in Markdown": (
        "| epoch | train loss | val loss |\n|---|---|---|\n"
        + "".join(f"| {n} | {5 / n:.3f} | {6 / n:.3f} |\n" for n in N),
        "val loss",
        "val_loss",
        list(N),
    ),
    "XGBoost": (
        "".join(f"[{n}]\ttrain-logloss:{0.7 / n:.4f}\tvalid-logloss:{0.8 / n:.4f}\n" for n in N),
        "valid-logloss",
        "val_loss",
        list(N),
    ),
    "absl's logging": (
        "".join(
            f"I0102 10:00:00.123456 140 logging_writer.py:64] [{n * 100}] loss={3 / n:.4f}, learning_rate=0.1\n"
            for n in N
        ),
        "loss",
        "loss",
        [n * 100 for n in N],
    ),
    "MaxText": (
        "".join(f"completed step: {n}, seconds: 1.5, Tokens/s/device: 5000.1, loss: {11 / n:.3f}\n" for n in N),
        "loss",
        "loss",
        list(N),
    ),
    "torchtitan": (
        "".join(
            f"[rank0]:2024-01-01 10:00:00,123 - root - INFO - \x1b[31mstep: {n:2}  \x1b[32mloss: {11 / n:7.4f}  "
            "\x1b[33mmemory: 30.5GiB(40.0%)  \x1b[34mtps: 1,234  \x1b[36mmfu: 30.5%\x1b[39m\n"
            for n in N
        ),
        "loss",
        "loss",
        list(N),
    ),
    "OLMo": (
        "".join(
            f"2024-01-01T10:00:00.123 host:0 olmo.train:980 INFO [step={n}/739328,epoch=0]\n"
            f"    optim/total_grad_norm=0.5\n    train/CrossEntropyLoss={11 / n:.3f}\n    train/Perplexity=84,123\n"
            for n in N
        ),
        "train/CrossEntropyLoss",
        "loss",
        list(N),
    ),
    "logfmt": (
        "".join(f'time="2024-01-02T03:04:05Z" level=info msg="train" step={n} loss={3 / n:.3f}\n' for n in N),
        "loss",
        "loss",
        list(N),
    ),
    "printed tensors": (
        "".join(f"step {n} loss tensor({n / 10}, device='cuda:0', grad_fn=<X>)\n" for n in N),
        "loss",
        "loss",
        list(N),
    ),
    "thousands set apart": (
        "".join(f"step {n},000 loss {3 / n:.3f}\n" for n in N),
        "loss",
        "loss",
        [n * 1000 for n in N],
    ),
    "a line that begins with a date in brackets": (
        "".join(f"[2024-01-02 03:04:05] step {n} loss {3 / n:.3f}\n" for n in N),
        "loss",
        "loss",
        list(N),
    ),
    "batches of epochs": (
        "".join(f"Epoch {e}/3 | Step {b}/30 | Loss: {3 / e - b / 100:.4f} | LR: 1.00e-03\n" for e, b in EPOCHS),
        "Loss",
        "loss",
        [e * 30 + b for e, b in EPOCHS],
    ),
    "the language model of PyTorch's examples": (
        "".join(
            f"| epoch   {e} |   {b}/ 2983 batches | lr 20.00 | ms/batch 12.31 | loss  {6 / e:.2f} | ppl   400.12\n"
            + (
                f"{'-' * 89}\n| end of epoch   {e} | time: 40.12s | valid loss  5.{e} | valid ppl 180.00\n"
                * (b == 2800)
            )
            for e in (3, 4)
            for b in range(200, 2983, 200)
        ),
        "loss",
        "loss",
        [e * 2983 + b for e in (3, 4) for b in range(200, 2983, 200)],
    ),
    "an evaluation beneath each step": (
        "".join(f"Step {n * 100}: train_loss=2.{n}, time=3s\n  eval_loss: 3.{n}, eval_acc: 0.5\n" for n in N),
        "eval_loss",
        "val_loss",
        [n * 100 for n in N],
    ),
    "a row of dictionaries with a bar in front": (
        "".join(f"\r  {n}%|#   | {n}/100 [00:01<00:10,  1.2it/s]{{'loss': {5 / n}, 'epoch': {n}}}\n" for n in N),
        "loss",
        "loss",
        list(N),
    ),
    "a name in another script": (
        "".join(f"第 {n} 步 loss：{3 / n:.3f}\n" for n in N),
        "loss",
        "loss",
        list(N),
    ),
}


@pytest.mark.parametrize("tool", LOGS)
def test_what_other_tools_print_is_read(tmp_path: Path, tool: str) -> None:
    log, name, quantity, steps = LOGS[tool]
    result = metric(history(tmp_path, log), name)
    assert result.meaning.quantity == quantity
    assert result.series.steps.tolist() == steps
    assert result.series.attempts.max() == 0


def test_the_download_of_one_curve_from_tensorboard_has_the_name_of_its_file(tmp_path: Path) -> None:
    table = "Wall time,Step,Value\n" + "".join(f"16300000{n}.5,{n},{3 / n}\n" for n in range(10, 19))
    (result,) = history(tmp_path, table, "run-x-tag-train_loss.csv").metrics
    assert (result.name, result.meaning.quantity, len(result.series)) == ("train_loss", "loss", 9)


def test_downloads_from_other_services_keep_their_columns(tmp_path: Path) -> None:
    table = '"Step","run1 - loss","run1 - loss__MIN"\n' + "".join(f'"{n}","{3 / n}","{3 / n}"\n' for n in N)
    result = metric(history(tmp_path, table), "run1 - loss")
    assert (result.meaning.quantity, result.series.steps.tolist()) == ("loss", list(N))


def test_what_several_processes_print_of_one_epoch_is_its_mean(tmp_path: Path) -> None:
    log = "".join(f"[Epoch {e}] - train loss: {rank + 1 / e}\n" for e in (10, 20, 30, 40) for rank in range(3))
    result = metric(history(tmp_path, log), "train loss")
    assert result.series.steps.tolist() == [10, 20, 30, 40]
    assert result.series.values.tolist() == pytest.approx([1 + 1 / e for e in (10, 20, 30, 40)])


def cyclegan(first_nan: int) -> str:
    """What `print_current_losses` of CycleGAN writes."""
    lines = ["================ Training Loss (Mon Jan  1 12:00:00 2024) ================\n"]
    for epoch in range(1, 11):
        for batch in (100, 200, 300):
            parts = {"D_A": 0.25, "G_A": 0.3, "cycle_A": 2.0, "idt_A": 0.9}
            values = (f"{name}: {math.nan if epoch >= first_nan else v:.3f} " for name, v in parts.items())
            lines.append(f"(epoch: {epoch}, iters: {batch}, time: 0.198, data: 0.002) {''.join(values)}\n")
    return "".join(lines)


def test_losses_of_a_cyclegan_are_found_when_they_become_nan_and_their_level_is_not_judged(tmp_path: Path) -> None:
    finite = history(tmp_path, cyclegan(first_nan=99), "loss_log.txt")
    assert {loss.name for loss in finite.of("loss")} == {"D_A", "G_A", "cycle_A", "idt_A"}
    assert diagnosis_of(finite).findings == ()
    broken = diagnosis_of(history(tmp_path, cyclegan(first_nan=6), "loss_log.txt"))
    assert {finding.kind for finding in broken.findings} == {"nan_detected"}
    assert broken.findings[0].severity == Severity.CRITICAL
