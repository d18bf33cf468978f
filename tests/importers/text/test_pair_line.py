from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.importers.log_content import LogLine
from mlflow_stability.importers.text.pair_line import LinePatterns, pair_line

NAN = math.nan

LINES = [
    # nanoGPT, llm.c and their children
    ("iter 100: loss 3.1245, time 123.45ms, mfu 12.30%", 100, NAN, {"loss": 3.1245}),
    ("step 200: train loss 3.1, val loss 3.2", 200, NAN, {"train loss": 3.1, "val loss": 3.2}),
    ("s:7435 trl:3.2850 lr:0.000000 norm:0.26", 7435, NAN, {"trl": 3.285, "lr": 0.0, "norm": 0.26}),
    ("s:7500 tel:nan", 7500, NAN, {"tel": NAN}),
    ("step:5/2000 train_loss:nan train_time:21ms step_avg:10.5ms tok/s:49", 5, NAN, {"train_loss": NAN, "tok/s": 49}),
    ("step   12/19560 | loss 6.9 (+nanz)| norm 1.2 (+1.5z)| lr 1.00e-06 | 20 ms", 12, NAN, {"loss": 6.9, "norm": 1.2}),
    ("  step     0/6000 | loss=81.9200 | lr=2.0e-06 | 26K tok/s | 3s", 0, NAN, {"loss": 81.92, "lr": 2e-6}),
    (
        "step 9 layer.3.weight grad_norm=152.3 update_ratio=0.5 ALERT",
        9,
        NAN,
        {"grad_norm_by_layer/layer.3.weight": 152.3, "update_ratio_by_layer/layer.3.weight": 0.5},
    ),
    # Megatron, DeepSpeed
    (
        (
            " iteration      100/    5000 | consumed samples:  1600 | elapsed time per iteration (ms): 1234.5 | "
            "learning rate: 1.5E-04 | lm loss: 1.2E+00 | loss scale: 1.0 | grad norm: 1.234 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        ),
        100,
        NAN,
        {"lm loss": 1.2, "loss scale": 1.0, "grad norm": 1.234, "elapsed time per iteration (ms)": 1234.5},
    ),
    ("steps: 10 loss: 3.2190 iter time (s): 0.512 samples/sec: 62.5", 10, NAN, {"loss": 3.219, "iter time (s)": 0.512}),
    (
        "[2024-01-01 12:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001, 0.002]",
        10,
        NAN,
        {"lr": 0.001},
    ),
    # tutorials of PyTorch
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.302585", 640, 1, {"Loss": 2.302585}),
    (
        "Epoch: [3][ 10/500]\tTime  0.5 ( 1.2)\tLoss 7.0e+00 (7.1e+00)\tAcc@1   0.00 (  0.10)",
        10,
        3,
        {"Loss": 7.0, "Acc@1": 0.0},
    ),
    ("[1,  2000] loss: 2.191", 2000, 1, {"loss": 2.191}),
    ("Epoch 38 Train, mae:7.32, mse:25.91, Cost: 669.2 sec", NAN, 38, {"mae": 7.32, "mse": 25.91}),
    ("Cost after iteration 100: 0.4863", 100, NAN, {"Cost": 0.4863}),
    ("09:43:53,914: Loss at step 8 of 100 = 7.1, lr = 0.1", 8, NAN, {"Loss": 7.1, "lr": 0.1}),
    ("Cost after 100 iterations: 0.4863", 100, NAN, {"Cost": 0.4863}),
    ("[Epoch 1] loss is 0.5 at step 100", 100, 1, {"loss": 0.5}),
    ("Validation loss at epoch 3 is 0.4", NAN, 3, {"Validation loss": 0.4}),
    ("Training loss (for one batch) at step 200: 0.4", 200, NAN, {"Training loss": 0.4}),
    ("validating...:  5%|# | 1/21 [00:01<00:24, 1.2s/it, loss:49.6]", 1, NAN, {"validating loss": 49.6}),
    ("iteration:2 step:13/1687, NER loss: 5.045087", 13, 2, {"NER loss": 5.045087}),
    ("[000500/50000] X4K | loss 0.0488 | 3.04 it/s | batch 16", 500, NAN, {"loss": 0.0488}),
    ("[3/25][50/1583]\tLoss_D: 0.3 Loss_G: 5.1 D(x): 0.9", 50, 3, {"Loss_D": 0.3, "Loss_G": 5.1}),
    ("[Epoch 3/200] [Batch 20/938] [D loss: 0.5] [G loss: 1.2]", 20, 3, {"D loss": 0.5, "G loss": 1.2}),
    ("Epoch [1/10], Step [100/600], Loss: 0.3021", 100, 1, {"Loss": 0.3021}),
    ("TRAIN in epoch 3 , step 250, loss = 2.4", 250, 3, {"loss": 2.4}),
    ("higher corrcoef: 0.5504 in batch: 10, save model", NAN, NAN, {"higher corrcoef": 0.5504}),
    ("[E2] step 5610 loss 0.5209", 5610, 2, {"loss": 0.5209}),
    ("---Epoch.8 Train Log-Loss per event: 3.528. ", NAN, 8, {"Train Log-Loss per event": 3.528}),
    ("epoch3 train loss: 0.5, epoch3 val loss: 0.6", NAN, 3, {"train loss": 0.5, "val loss": 0.6}),
    ("saved epoch_3.pth, loss: 0.5", NAN, NAN, {"loss": 0.5}),
    ("epoch: 3 validation, acc: 0.6, loss: 1.2", NAN, 3, {"validation acc": 0.6, "validation loss": 1.2}),
    ("epoch: 3 done, acc: 0.6, loss: 1.2", NAN, 3, {"acc": 0.6, "loss": 1.2}),
    ("TEST in epoch0, loss = 2.2, acc = 44.1%", NAN, 0, {"test loss": 2.2}),
    ("Epoch 95 Update 48800 Cost 76.88 PD 0.05", 48800, 95, {"Cost": 76.88}),
    ("Episode 3/10 | Deliveries: 749 | Loss: 23.8487", NAN, NAN, {"Episode": 3, "Loss": 23.8487}),
    ("Epoch 12: loss = 0.53, val_loss = 0.61", NAN, 12, {"loss": 0.53, "val_loss": 0.61}),
    ("Test set: Average loss: 0.0469, Accuracy: 9850/10000 (98%)", NAN, NAN, {"test Average loss": 0.0469}),
    # Keras, tqdm, mmdetection, fairseq
    (" 32/100 [=====>......] - ETA: 3s - loss: 0.5021 - accuracy: 0.3100", 32, NAN, {"loss": 0.5021, "accuracy": 0.31}),
    ("Epoch 1:  10%|#     | 5/50 [00:01<00:10,  4.50it/s, loss=2.31, v_num=0]", 5, 1, {"loss": 2.31}),
    ("[fold_0] 003/200:  50%|###  | 2/4 [00:14<00:12,  6.12s/it, loss=3.9]", 2, 3, {"loss": 3.9}),
    ("INFO - 1%|1         | 2.00/171 [00:01<01:18, 2.14batch/s, loss=5.32]", 2, NAN, {"loss": 5.32}),
    ("70%|###| 7/10 [04:10<01:47, 35.9s/epoch, loss=0.13, val_loss=5.4]", NAN, 7, {"loss": 0.13, "val_loss": 5.4}),
    (
        (
            "2021-10-05 12:12:12,123 - mmdet - INFO - Epoch [1][50/7330]\tlr: 1.978e-03, eta: 11:12:13, time: 0.414, "
            "loss_cls: 0.5, loss: 1.2"
        ),
        50,
        1,
        {"lr": 1.978e-3, "loss_cls": 0.5, "loss": 1.2},
    ),
    (
        "| epoch 001:    100 / 5000 loss=9.1, nll_loss=8.5, num_updates=100, lr=1e-05, gnorm=2.3",
        100,
        1,
        {"loss": 9.1, "gnorm": 2.3},
    ),
    ("12:31:36 | INFO | step=5 loss=2.0 grad_norm=inf", 5, NAN, {"loss": 2.0, "grad_norm": math.inf}),
    # Ray's prefix; a parenthesis that closes in front of a name
    (
        "(TaskRunner pid=123) step:3 - actor/pg_loss:2.5 - actor/lr:1e-06",
        3,
        NAN,
        {"actor/pg_loss": 2.5, "actor/lr": 1e-6},
    ),
    ("(epoch: 2, iters: 100, time: 0.2, data: 0.1) D_A: 0.3 G_A: 0.5", 100, 2, {"D_A": 0.3, "G_A": 0.5}),
    ("step 5: (lr 0.1) loss: 2.5 (best 2.4) acc: 0.3", 5, NAN, {"loss": 2.5, "acc": 0.3}),
    ("global_step: 7, flag:True loss:2.5", 7, NAN, {"loss": 2.5}),
    ("INFO:Epoch 1: Train Loss=0.0717, Val Loss=0.0766", NAN, 1, {"Train Loss": 0.0717, "Val Loss": 0.0766}),
    ("after a run loss=2.5 at step 10", 10, NAN, {"loss": 2.5}),
    ("ITER 500 TRAINING (phase 1). loss_vae: 0.15; loss_kl: 2.4", 500, NAN, {"loss_vae": 0.15, "loss_kl": 2.4}),
    ("epoch:[  2/25 ] val step:0    loss: 3.04", 0, 2, {"val loss": 3.04}),
    ("epoch:[  2/25 ] train step:100    loss: 3.04", 100, 2, {"loss": 3.04}),
    ("Train: [ 2/5] Step 050/335 Loss 45.8", 50, 2, {"Loss": 45.8}),
    ("Round 7: global loss 0.42", 7, NAN, {"global loss": 0.42}),
    ("[NEW BEST] Epoch #3: train_loss=6.42, val_loss=6.5", NAN, 3, {"train_loss": 6.42, "val_loss": 6.5}),
    ("step #5 GPU 0 loss #2: lr 0.3", 5, NAN, {"lr": 0.3, "loss": None}),
    ("INFO - EVALUATING - Epoch: [0][10/157]\tLoss 1.44 (1.38)", 10, 0, {"eval Loss": 1.44}),
    ("Epoch 007 | Train Loss: 1.9 | Epoch Time: 28.7 s", NAN, 7, {"Train Loss": 1.9}),
    ("INFO:root:Evaluation Epoch 3 - Average Loss: 4.5", NAN, 3, {"evaluation Average Loss": 4.5}),
    ("INFO - TRAINING - Epoch: [0][10/781]\tLoss 1.44 (1.38)", 10, 0, {"Loss": 1.44}),
    ("Test acc: 0.9, train loss: 0.1", NAN, NAN, {"Test acc": 0.9, "train loss": 0.1}),
    ("The result of the residual network with Adam is test acc: 76.8%, loss: 0.68", NAN, NAN, {"test loss": 0.68}),
]


def values_of(line: str) -> LogLine:
    result = pair_line(line)
    assert result is not None, line
    return result[0]


@pytest.mark.parametrize(("line", "step", "epoch", "some"), LINES)
def test_a_line_that_people_print_is_understood(line: str, step: float, epoch: float, some: dict[str, float]) -> None:
    read = values_of(line)
    assert (read.step, read.epoch) == pytest.approx((step, epoch), nan_ok=True)
    assert {name: read.values.get(name) for name in some} == pytest.approx(some, nan_ok=True)


@pytest.mark.parametrize("line", [line for line, *_ in LINES])
def test_a_kind_of_line_that_was_seen_before_is_read_alike(line: str) -> None:
    patterns = LinePatterns()
    for _ in range(2):
        result = pair_line(line)
        assert result is not None
        patterns.learn(result[1])
    again, slow = patterns.read(line), values_of(line)
    assert again is not None
    assert (again.step, again.epoch) == pytest.approx((slow.step, slow.epoch), nan_ok=True)
    assert again.values == pytest.approx(slow.values, nan_ok=True)


numbers = st.one_of(
    st.floats(0, 1e6, allow_nan=False).map(lambda value: f"{value:.4f}"),
    st.floats(1e-9, 1e9).map(lambda value: f"{value:.2e}"),
    st.sampled_from(["nan", "inf", "-inf", "0", "-1.5", "NaN"]),
)


@given(st.lists(st.tuples(st.integers(0, 10**7), numbers, numbers, numbers), min_size=3, max_size=6))
def test_a_learned_line_pattern_gives_the_same_result_as_a_full_read_for_any_numbers(
    rows: list[tuple[int, str, str, str]],
) -> None:
    patterns = LinePatterns()
    for step, loss, rate, norm in rows:
        line = f"2024-01-02 03:04:0{step % 10} [rank0] step:{step}/1000 loss_q0: {loss} loss_q1={rate} | "
        line += f"grad norm {norm} 3x"
        quick, slow = patterns.read(line), pair_line(line)
        assert slow is not None
        if quick is not None:
            assert quick.step == slow[0].step
            assert quick.values == pytest.approx(slow[0].values, nan_ok=True)
        patterns.learn(slow[1])


@pytest.mark.parametrize(
    "line",
    [
        "Using 8 GPUs and 4 workers",
        "commit sha:12ab34cd",
        "2024-01-02 03:04:05 started",
        "torch==2.13.0 on python 3.11",
        "",
        "the loss is not a number here",
    ],
)
def test_prose_dates_hashes_and_versions_are_no_values(line: str) -> None:
    result = pair_line(line)
    assert result is None or not {"loss", "sha"} & set(result[0].values)


@given(st.text(max_size=300))
def test_no_text_makes_it_fail(line: str) -> None:
    result = pair_line(line)
    assert result is None or all(isinstance(value, float) for value in result[0].values.values())


@pytest.mark.parametrize(
    ("line", "step", "total"),
    [
        ("step 5k | loss 2.5", 5000, NAN),
        ("step 1.2M loss=2.5", 1_200_000, NAN),
        ("iter: 5K/100K, loss: 2.5", 5000, 100_000),
        ("iteration 950/10k loss: 2.5 | 26K tok/s", 950, 10_000),
        ("step 5s loss 2.5", 5, NAN),
    ],
)
def test_a_step_may_be_counted_in_thousands(line: str, step: float, total: float) -> None:
    read = values_of(line)
    assert (read.step, read.total) == pytest.approx((step, total), nan_ok=True)
    assert read.values["loss"] == 2.5


def test_lines_that_count_in_thousands_are_never_read_by_a_pattern_that_does_not() -> None:
    patterns = LinePatterns()
    for line in ["step 998 | loss 2.5", "step 999 | loss 2.4", "step 1k | loss 2.3", "step 2k | loss 2.2"] * 3:
        quick, slow = patterns.read(line), pair_line(line)
        assert slow is not None
        assert quick is None or (quick.step, quick.values) == (slow[0].step, slow[0].values)
        patterns.learn(slow[1])


@pytest.mark.parametrize(
    "line", ["step infk loss 2", "step nank loss 2", "step 9e999M loss 2", "step 1k/9" + "9" * 400]
)
def test_thousands_without_end_do_no_harm(line: str) -> None:
    assert pair_line(line) is not None


def test_lines_of_one_module_are_never_taken_for_those_of_another() -> None:
    patterns = LinePatterns()
    for module in (0, 0, 1):
        line = f"layer.{module}.weight grad_norm=0.5"
        records = patterns.read(line)
        result = pair_line(line)
        assert result is not None
        patterns.learn(result[1])
        read = result[0] if records is None else records
        assert read.values == {f"grad_norm_by_layer/layer.{module}.weight": 0.5}


def test_a_hostile_line_costs_no_more_than_a_long_one() -> None:
    for piece in (" ", "a ", "a.", "1 ", ": ", "[1/", "loss ", "-", "a:1 ", "= "):
        assert pair_line(piece * 5000 + "!") is None or True
