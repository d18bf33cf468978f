from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.vocabulary.text.metric_names import metric_meanings, split_words

# Names as real tools write them, and what they are. `-`: no quantity of ours; `book`: counts; `= other`: as that name.
RUNS = {
    "keras": "loss: loss, val_loss: val_loss, accuracy: -, lr: learning_rate, epoch: book",
    "lightning": (
        "train_loss_step: loss, train_loss_epoch: = train_loss_step, valid_loss: val_loss, test_loss: "
        "val_loss@test, train_accuracy_step: -, train_accuracy_epoch: = train_accuracy_step, lr-AdamW/pg1: "
        "learning_rate@AdamW_pg1, lr-AdamW/pg2: learning_rate@AdamW_pg2, epoch: book"
    ),
    "nanogpt": "train/loss: loss, val/loss: val_loss, iter: book, lr: learning_rate, mfu: mfu",
    "llm.c": "trl: loss, tel: val_loss, lr: learning_rate, norm: grad_norm",
    "megatron": (
        "lm loss: loss, loss scale: loss_scale, grad norm: grad_norm, params norm: param_norm, num zeros: -, "
        "learning rate: learning_rate, consumed samples: book, elapsed time per iteration (ms): step_time, "
        "global batch size: book"
    ),
    "transformers": (
        "loss: loss, grad_norm: grad_norm, learning_rate: learning_rate, eval_loss: val_loss, eval_wer: -, "
        "eval_runtime: book, eval_samples_per_second: book, total_flos: book"
    ),
    "cyclegan": "D_A: loss@D_A, G_A: loss@G_A, cycle_A: loss@cycle_A, idt_A: loss@idt_A, time: book, data: -",
    "pix2pix": "G_GAN: loss@G_GAN, G_L1: loss@G_L1, D_real: loss@D_real, D_fake: loss@D_fake, time: book",
    "outputs of a discriminator": "Loss_D: loss@D, Loss_G: loss@G, D_x: -, G_z: -",
    "evaluations": "loss: loss, eval_g0_loss: val_loss@g0, eval_g1_loss: val_loss@g1",
    "ultralytics": (
        "time: book, train/box_loss: loss@box, train/cls_loss: loss@cls, val/box_loss: val_loss@box, "
        "val/cls_loss: val_loss@cls, metrics/mAP50(B): -, lr/pg0: learning_rate@pg0, lr/pg1: "
        "learning_rate@pg1"
    ),
    "detectron": (
        "total_loss: loss, loss_cls: loss@cls, loss_box_reg: loss@box_reg, loss_mask: loss@mask, data_time: "
        "book, eta_seconds: book, rpn/num_pos_anchors: -"
    ),
    "fairseq": (
        "loss: loss, valid_loss: val_loss, train_loss: = loss, ppl: -, wps: tokens_per_second, ups: book, "
        "wpb: book, gnorm: grad_norm, loss_scale: loss_scale, train_wall: book, gb_free: book, num_updates: "
        "book"
    ),
    "reinforcement": (
        "train/loss: loss, train/value_loss: loss@value, train/policy_gradient_loss: loss@policy_gradient, "
        "train/entropy_loss: loss@entropy, train/approx_kl: -, rollout/ep_rew_mean: -, rollout/ep_len_mean: "
        "-, time/fps: book"
    ),
    "adversaries": "Discriminator loss: loss@Discriminator, Generator loss: loss@Generator, D(x): -",
    "adversaries again": "Loss_D: loss@D, lossG: loss@G",
    "segmentation": "train/decode.loss_seg: loss, train/decode.acc_seg: -, learning_rate: learning_rate",
    "slashes": "loss_seg/train: loss@seg, loss_seg/val: val_loss@seg, loss_cls/train: loss@cls",
    "camels": "trainLoss: loss, valLoss: val_loss, gradNorm: grad_norm, learningRate: learning_rate",
    "glued": "trainloss: loss, valloss: val_loss, gradnorm: grad_norm",
    "people": "Training Loss: loss, Validation Loss: val_loss, Test Accuracy: -",
    "physics": "mean_loss: loss, Conductor_Copper_loss: loss@Conductor_Copper, heat_loss: loss@heat",
    "only parts": "dice_loss: loss, val_dice_loss: val_loss",
    "one word": "Train-SmoothL1: loss, Train-Acc: -",
    "no loss": "train_mse: loss, val_mse: val_loss, r2: -",
    "not losses": (
        "loss: loss, loss_zscore: -, best_val_loss: book, loss_weight: -, lossless_ratio: -, packet_loss: -, "
        "glossary: -"
    ),
    "smoothed": "loss: loss, loss_ema: = loss, avg_loss: = loss",
    "games": "wins: -, losses: -, draws: -",
    "norms": (
        "grad_2.0_norm_total: grad_norm, grad_2.0_norm/layer1.weight: grad_norm@layer1_weight, max_grad_norm: book"
    ),
    "ours": (
        "stability/loss: loss, stability/grad_norm_by_layer/blocks.3.attn: grad_norm@blocks.3.attn, "
        "stability_2/loss: loss@stability_2, stability/learning_rate_by_group/group_1: learning_rate@group_1"
    ),
    "ours of 0.2": (
        "stability/loss: loss, stability/loss_statistics/loss_trend: loss_trend, "
        "stability/optimizer/learning_rate.group_1: learning_rate@group_1, stability/track_d/loss: loss@track_d, "
        "stability/layers/grad_norm/blocks.3.attn: grad_norm@blocks.3.attn"
    ),
    "ours with numbers": (
        "stability/1_loss: loss, stability/optimizer/learning_rate.group_1: learning_rate@group_1, "
        "stability/layers/grad_norm/blocks.3.attn: grad_norm@blocks.3.attn, stability/track_d/1_loss: loss@track_d"
    ),
    "speed": (
        "train_loss: loss, tok/s: tokens_per_second, step_avg: book, train_time: book, system/gpu_0_power: "
        "book, pid: book"
    ),
}


def expected(text: str) -> dict[str, str]:
    return dict(tuple(word.rsplit(": ", 1)) for word in text.split(", "))  # type: ignore[misc]


def as_said(name: str, names: list[str]) -> str:
    meaning = metric_meanings(names)[name]
    if meaning.duplicate_of:
        return f"= {meaning.duplicate_of}"
    return str(meaning.signal) if meaning.is_known else "book" if meaning.bookkeeping else "-"


@pytest.mark.parametrize("run", RUNS)
def test_names_of_real_tools_are_understood(run: str) -> None:
    wanted = expected(RUNS[run])
    assert {name: as_said(name, list(wanted)) for name in wanted} == wanted


@pytest.mark.parametrize(
    "name", ["epoch", "global_step", "timestamp", "consumed_samples", "train_runtime", "percentage", "num_tokens"]
)
def test_a_counter_or_a_clock_is_bookkeeping(name: str) -> None:
    assert metric_meanings([name, "loss"])[name].bookkeeping


@pytest.mark.parametrize(
    "name", ["perplexity", "reward", "accuracy-agent_17", "bbox/AP", "momentum", "entropy", "mask_ratio"]
)
def test_a_score_is_neither_a_loss_nor_bookkeeping(name: str) -> None:
    meaning = metric_meanings([name, "loss"])[name]
    assert (meaning.is_known, meaning.bookkeeping, meaning.quantity) == (False, False, name)


WORDS = [
    "train",
    "val",
    "test",
    "eval",
    "loss",
    "Loss",
    "losses",
    "step",
    "epoch",
    "mean",
    "total",
    "lr",
    "grad",
    "norm",
]
WORDS += ["scale", "box", "/", ".", "1", "trl", "time", "stability", "ema", "wins"]
words = st.sampled_from(WORDS)
names = st.one_of(
    st.text(max_size=15), st.lists(words, max_size=5).map("_".join), st.lists(words, max_size=5).map("/".join)
)


@given(st.lists(names, max_size=15))
def test_every_name_has_a_meaning_and_no_two_metrics_are_the_same_thing(logged: list[str]) -> None:
    meanings = metric_meanings(logged)
    assert list(meanings) == list(dict.fromkeys(logged))
    signals = [meaning.signal for meaning in meanings.values() if meaning.is_known and not meaning.duplicate_of]
    assert len(signals) == len(set(signals))
    for meaning in meanings.values():
        assert not meaning.duplicate_of or meanings[meaning.duplicate_of].duplicate_of == ""


@given(st.lists(names, max_size=8))
def test_the_order_of_the_names_does_not_matter_for_what_is_known(logged: list[str]) -> None:
    there, back = metric_meanings(logged), metric_meanings(logged[::-1])
    assert {name: (signal.quantity, signal.is_known) for name, signal in there.items()} == {
        name: (signal.quantity, signal.is_known) for name, signal in back.items()
    }


@given(st.lists(names, max_size=8), st.randoms())
def test_the_order_of_the_names_does_not_matter_for_which_loss_is_the_whole_one(
    logged: list[str], random: Random
) -> None:
    shuffled = random.sample(logged, len(logged))
    there, other = metric_meanings(logged), metric_meanings(shuffled)
    assert {name: record.signal for name, record in there.items()} == {
        name: record.signal for name, record in other.items()
    }


@pytest.mark.parametrize(
    ("logged", "loss", "validation"),
    [
        (["loss", "val_ppl", "val_acc"], "loss", "val_ppl"),
        (["val_mae", "train_mae", "train_mse", "val_mse"], "train_mse", "val_mse"),
        (["train_loss", "val/ce", "val/mse"], "train_loss", "val/ce"),
        (["train_err", "test_err", "lr"], "train_err", "test_err"),
        (["perplexity", "accuracy"], "perplexity", ""),
        (["训练损失", "验证损失", "准确率"], "训练损失", "验证损失"),
        (["perda_treino", "perda_validacao"], "perda_treino", "perda_validacao"),
        (["tloss", "vloss"], "tloss", "vloss"),
        (["loss", "val_loss", "val_ppl", "val_mse"], "loss", "val_loss"),
        (["loss", "td_error", "accuracy"], "loss", ""),
    ],
)
def test_the_metric_most_like_a_loss_replaces_a_missing_loss(logged: list[str], loss: str, validation: str) -> None:
    meanings = metric_meanings(logged)
    whole = {signal.quantity: name for name, signal in meanings.items() if signal.is_known and not signal.place}
    assert (whole.get("loss", ""), whole.get("val_loss", "")) == (loss, validation)


def test_a_value_loss_beside_that_of_a_policy_is_no_validation_loss() -> None:
    quantities = {name: meaning.quantity for name, meaning in metric_meanings(["pg_loss", "v_loss"]).items()}
    assert quantities == {"pg_loss": "loss", "v_loss": "loss"}


def test_no_metric_replaces_a_loss_that_may_still_appear() -> None:
    assert not metric_meanings(["loss", "val_ppl"], all_known=False)["val_ppl"].is_known


@given(st.text(max_size=40))
def test_splitting_a_name_drops_no_letter_and_no_digit(name: str) -> None:
    assert "".join(split_words(name)) == "".join(value for value in name if (value.isalnum()) or value == "%")


def test_terms_that_papers_write_with_an_l_are_losses_where_nothing_else_is() -> None:
    terms = metric_meanings(["L_vae", "train/L_recon", "L_max", "acc"])
    assert [meaning.quantity for meaning in terms.values()] == ["loss", "loss", "L_max", "acc"]
    assert metric_meanings(["loss", "L_recon"])["L_recon"].quantity == "L_recon"
