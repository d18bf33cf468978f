"""Targets of a loss, which its graph holds: their classes, how many are ignored, how much they vary.

Guarantees: no device is waited for; no hook for saved tensors runs, so that nothing is moved or recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.first_look.loss_graph import (
    MEAN,
    NONE,
    RESHAPING,
    loss_functions,
    node_name,
    nodes_behind,
    saved,
    shape_of,
    source_of,
    undivided,
)
from mlflow_stability.probes.hooks.thread_state import untracked
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType("class_low", "lowest class among the targets of a step; first steps, for cross entropy"),
    SignalType("class_high", "highest class among the targets of a step; first steps"),
    SignalType("targets_ignored", "share of targets with the value of `ignore_index`; first steps"),
    SignalType("label_low", "lowest target of a binary cross entropy; first steps"),
    SignalType("label_high", "highest target of a binary cross entropy; first steps"),
    SignalType(
        "targets_unreachable",
        "share of targets outside of what the last activation gives; first steps, for squared errors",
    ),
    SignalType(
        "target_variance",
        "loss of a model that answers the mean of each batch's targets; first steps, for a mean squared error alone",
    ),
    SignalType(
        "targets_above_one",
        "share of rows whose targets add up to more than 1.5; first steps, for cross entropy of probabilities",
    ),
    SignalType(
        "targets_in_input",
        "share of targets that are the token at the same position of the input; first steps, for cross entropy over "
        "the entries of one embedding",
    ),
    SignalType(
        "targets_in_view",
        "share of targets that are the next token of the input and can be seen by attention; first steps, for cross "
        "entropy over the entries of one embedding",
    ),
    SignalType(
        "targets_padding",
        "share of targets that are the padding of the input and are not ignored; first steps, for cross entropy over "
        "the entries of an embedding",
    ),
    SignalType(
        "batch_repeated",
        "1 where inputs and targets of a step are those of the step before; first steps, for loss functions of PyTorch",
    ),
    topic="loss_statistics",
)
REPEATED = (Signal("batch_repeated", ""),)
MAX_INPUTS = 4  # that are compared
SAMPLE = 256  # values of each
# Nodes of first layers, the place of their input among the nodes before them, and the name by which they saved it.
FIRST_LAYERS = {"Addmm": (1, "mat1"), "Mm": (0, "self"), "Convolution": (0, "input"), "Embedding": (None, "indices")}
CLASSES = (Signal("class_low", ""), Signal("class_high", ""), Signal("targets_ignored", ""))
LABELS = (Signal("label_low", ""), Signal("label_high", ""))
UNREACHABLE = (Signal("targets_unreachable", ""),)
RANGES = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, math.inf)}  # of activations
SLACK = 0.01  # of a target outside its range
OF_NUMBERS = ("MseLoss", "SmoothL1Loss", "HuberLoss")
ABOVE_ONE = (Signal("targets_above_one", ""),)
MAX_SUM = 1.5  # of the targets of a row; 1 but for rounding is usual
VARIANCE = (Signal("target_variance", ""),)
DRIFT = 4.0  # number of standard errors from which a mean of targets differs from that of the first batch
MIN_TARGETS = 8  # in a step, without those that are ignored


class Batches:
    """Samples of the inputs and targets behind the first loss of a step, beside those of the step before."""

    def __init__(self) -> None:
        self._step = 0
        self._samples: list[Tensor] = []
        self._same: Tensor | None = None

    def note(self, loss: Tensor, step: int) -> None:
        if step == self._step:
            return
        follows, last, self._step = step == self._step + 1, self._samples, step
        with untracked():
            targets = [saved(node, "target") for _, node, _ in loss_functions(loss)]
            targets += [
                _prediction_and_target(node)[1] for node in [undivided(loss)[0]] if node_name(node) in OF_NUMBERS
            ]
            inputs = [data for node in nodes_behind(loss.grad_fn) if (data := _data_of(node)) is not None][:MAX_INPUTS]
            held = [*inputs, *(target for target in targets if target is not None)]
            self._samples = [_sample_of(tensor) for tensor in held] if inputs and len(held) > len(inputs) else []
            both = list(zip(self._samples, last, strict=False)) if len(last) == len(self._samples) else []
            alike = [now.shape == before.shape and now.device == before.device for now, before in both]
            if follows and both and all(alike) and _same_device(self._samples):
                self._same = torch.stack([(now == before).all() for now, before in both]).all().float().reshape(1)
            elif follows and both:
                self._same = torch.zeros(1, device=self._samples[0].device)

    def blocks(self) -> list[Block]:
        same, self._same = self._same, None
        return [] if same is None else [Block(REPEATED, same)]


def _data_of(node: Any) -> Tensor | None:
    """Return what a first layer gets, which has no gradient; None for other nodes."""
    place, name = FIRST_LAYERS.get(node_name(node), (0, ""))
    is_data = bool(name) and (place is None or node.next_functions[place][0] is None)
    return saved(node, name) if is_data else None


def _sample_of(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1].reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].clone()


class Targets:
    def __init__(self) -> None:
        self._tokens = InputTokens()
        self._means: dict[int, Tensor] = {}  # of the first targets, by place of the loss in a step
        self.clear()

    def clear(self) -> None:
        # Of each loss: lowest and highest class, number of ignored targets and of all.
        self._classes: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._variances: list[Tensor | None] = []
        self._shares: dict[tuple[Signal, ...], list[Tensor]] = {UNREACHABLE: [], ABOVE_ONE: []}
        self._counted = 0
        self._tokens.clear()

    def note(self, loss: Tensor) -> None:
        with untracked():
            for _, node, _ in loss_functions(loss):
                target = saved(node, "target")
                if target is None:
                    continue
                if node_name(node).startswith("NllLoss"):
                    # torch gives it as an unsigned number of 64 bits
                    ignored = (int(node._saved_ignore_index) + 2**63) % 2**64 - 2**63
                    is_ignored = target == ignored
                    low = target.masked_fill(is_ignored, torch.iinfo(target.dtype).max).amin()
                    high = target.masked_fill(is_ignored, -1).amax()
                    count = is_ignored.sum()
                    self._classes.append(
                        torch.stack((low, high, count, torch.full_like(count, target.numel()))).to(torch.float32)
                    )
                    self._counted += target.numel()
                    self._tokens.note(node, target, ignored)
                elif node_name(node).startswith("BinaryCrossEntropy"):
                    self._labels.append(torch.stack(torch.aminmax(target)).float())
            self._variances.append(self._variance_of(loss))
            probabilities = _probabilities(loss)
            if probabilities is not None:
                self._shares[ABOVE_ONE].append((probabilities.sum(1) > MAX_SUM).float().mean())
            unreachable = _unreachable(loss)
            if unreachable is not None:
                self._shares[UNREACHABLE].append(unreachable)

    def _variance_of(self, loss: Tensor) -> Tensor | None:
        """Return the loss of predicting the mean; of sorted targets, whose mean drifts, that of their first mean."""
        node, share = undivided(loss)
        is_mean = node_name(node) == "MseLoss" and getattr(node, "_saved_reduction", None) == MEAN
        target = _prediction_and_target(node)[1] if is_mean else None
        if target is None or target.dim() == 0 or len(target) < MIN_TARGETS:
            return None
        variance, mean = torch.var_mean(target.detach().float(), 0, correction=0)
        first = self._means.setdefault(len(self._variances), mean)
        if first.shape == mean.shape and first.device == mean.device:
            shift = (mean - first).square()
            variance = variance + shift * (shift > DRIFT**2 * 2 * variance / len(target))
        return share * variance.mean()

    def blocks(self) -> list[Block]:
        blocks: list[Block] = []
        with untracked():
            if self._counted >= MIN_TARGETS and _same_device(self._classes):
                rows = torch.stack(self._classes)
                low, high = rows[:, 0].amin(), rows[:, 1].amax()
                is_enough = (rows[:, 3] - rows[:, 2]).sum() >= MIN_TARGETS
                high = torch.where(is_enough, high, -1.0)  # else one class is no surprise
                blocks.append(Block(CLASSES, torch.stack((low, high, rows[:, 2].sum() / rows[:, 3].sum()))))
            blocks += self._tokens.blocks()
            if _same_device(self._labels):
                rows = torch.stack(self._labels)
                blocks.append(Block(LABELS, torch.stack((rows[:, 0].amin(), rows[:, 1].amax()))))
            for signals, shares in self._shares.items():
                if _same_device(shares):
                    blocks.append(Block(signals, torch.stack(shares).mean(0, keepdim=True)))
            variances = [variance for variance in self._variances if variance is not None]
            if len(variances) == len(self._variances) and _same_device(variances):
                blocks.append(Block(VARIANCE, torch.stack(variances).sum(0, keepdim=True)))
        self.clear()
        return blocks


def _unreachable(loss: Tensor) -> Tensor | None:
    node, _ = undivided(loss)
    if node_name(node) == "Mean":
        prediction, target = _of_difference(node.next_functions[0][0])
    elif node_name(node) in OF_NUMBERS:
        prediction, target = _prediction_and_target(node)
    else:
        return None
    limits = RANGES.get(node_name(source_of(prediction)))
    if limits is None or target is None:
        return None
    return ((target < limits[0] - SLACK) | (target > limits[1] + SLACK)).float().mean()


# The target of an absolute or squared error that is written out: what the activation gave, less the difference.
def _of_difference(node: Any) -> tuple[Any, Tensor | None]:
    sub: Any = node.next_functions[0][0] if node_name(node) in ("Abs", "Pow") else None
    if node_name(sub) != "Sub" or sub._saved_alpha != 1 or len(sub.next_functions) != 2:
        return None, None
    (first, _), (second, _) = sub.next_functions
    if (first is None) == (second is None):
        return None, None
    prediction, sign = (first, 1) if second is None else (second, -1)
    activation = prediction
    while node_name(activation) in (*RESHAPING, "Squeeze", "Unsqueeze"):
        activation = activation.next_functions[0][0]
    difference, given = saved(node, "self"), saved(activation, "result")
    if difference is None or given is None or difference.shape != shape_of(prediction):
        return None, None
    return activation, given.reshape(difference.shape) - sign * difference


def _probabilities(loss: Tensor) -> Tensor | None:
    """Return the targets of a mean `cross_entropy` of probabilities, as PyTorch computes it, else None."""
    node, _ = undivided(loss)
    for name in ("DivBackward1", "NegBackward0", "SumBackward0"):  # divided by the number of rows
        if node is None or node.name() != name:
            return None
        node = node.next_functions[0][0]
    if node_name(node) != "Mul" or node_name(node.next_functions[0][0]) != "LogSoftmax":
        return None
    target = saved(node, "other")
    if target is None or target.dim() < 2 or target.shape != shape_of(node):
        return None
    return target if target.shape[0] != target.shape[1] else None  # of pairs, several may be positive on purpose


# The target is the argument without a gradient.
def _prediction_and_target(node: Any) -> tuple[Any, Tensor | None]:
    (first, _), (second, _) = node.next_functions[:2]
    if first is not None and second is not None:
        return None, None
    return (second, saved(node, "self")) if first is None else (first, saved(node, "target"))


def _same_device(rows: Sequence[Tensor]) -> bool:
    return len({row.device for row in rows}) == 1


IN_INPUT, IN_VIEW = (Signal("targets_in_input", ""),), (Signal("targets_in_view", ""),)
PADDING = (Signal("targets_padding", ""),)
NO_PADDING = 2**63  # and more, for a negative number: an embedding without padding
LOOKS = 5  # steps, once in each: the whole graph is looked at
MIN_TARGETS = 8
HIDDEN = -1e4  # what a mask adds to scores that attention must not see, or less
MASKS = ("attn_mask", "attn_bias")
SOFTMAX = ("Softmax", "SafeSoftmax")


class InputTokens:
    def __init__(self) -> None:
        self._looks = 0
        self._blocks: list[Block] = []

    def clear(self) -> None:
        self._blocks = []

    def note(self, node: Any, target: Tensor, ignored: int) -> None:
        """Look at the first `nll_loss` of a step; `target` are its targets, except for those that are `ignored`."""
        if self._blocks or self._looks >= LOOKS or target.numel() < MIN_TARGETS:
            return
        if getattr(node, "_saved_reduction", NONE) == NONE or saved(node, "weight") is not None:
            return  # a mask, or a weight of 0, may leave out some of the targets
        self._looks += 1
        classes = shape_of(node.next_functions[0][0])[1:2]
        behind = list(nodes_behind(node))
        # Several embeddings, as in translation, may get the targets in one of them on purpose.
        tables = [table for table in behind if node_name(table) == "Embedding"]
        tables = [table for table in tables if (getattr(table, "_saved_weight_sym_argsize_0", None),) == classes]
        is_used = target != ignored
        padding = {getattr(table, "_saved_padding_idx", NO_PADDING) for table in tables}
        if len(padding) == 1 and (index := padding.pop()) < NO_PADDING and index != ignored:
            self._blocks.append(Block(PADDING, ((target == index).sum() / is_used.sum()).reshape(1)))
        tokens = saved(tables[0], "indices") if len(tables) == 1 else None
        if tokens is None or tokens.dim() != 2 or tokens.device != target.device:
            return
        if target.numel() == tokens.numel():
            same = (target.reshape(-1) == tokens.reshape(-1)) & is_used.reshape(-1)
            self._blocks.append(Block(IN_INPUT, (same.sum() / is_used.sum()).reshape(1)))
        in_view = _share_in_view(tokens, target, is_used, behind)
        if in_view is not None:
            self._blocks.append(Block(IN_VIEW, in_view.reshape(1)))

    def blocks(self) -> list[Block]:
        blocks, self._blocks = self._blocks, []
        return blocks


def _share_in_view(tokens: Tensor, target: Tensor, is_used: Tensor, behind: list[Any]) -> Tensor | None:
    """Return the share of targets that are the next token, at positions where attention sees it; None if unknown."""
    for rows, first_dim in ((tokens, 0), (tokens.T, 1)):
        length = rows.shape[1]
        seen = [_sees_next(node, length) for node in behind]
        views = [view for view in seen if view is not None and view.device == tokens.device]
        if length < 2 or not views:
            continue
        if target.numel() == tokens.numel():
            following, used = (part.reshape(tokens.shape) for part in (target, is_used))
            if first_dim:
                following, used = following.T, used.T
            following, used = following[:, :-1], used[:, :-1]
        elif not first_dim and target.numel() == len(rows) * (length - 1):  # the script has left the last one out
            following, used = (part.reshape(len(rows), length - 1) for part in (target, is_used))
        else:
            return None
        counted = used & (rows[:, 1:] != rows[:, :-1])  # of equal tokens, the next one shows nothing
        in_view = (following == rows[:, 1:]) & counted & torch.stack(views).any(0)
        return in_view.sum() / counted.sum()
    return None


def _sees_next(node: Any, length: int) -> Tensor | None:
    """Return for each position but the last whether attention sees the next one, in any head; None for other nodes."""
    name = node_name(node)
    if name in SOFTMAX:
        weights = saved(node, "result")
        if weights is None or weights.dim() < 3 or weights.shape[-2:] != (length, length):
            return None
        return _next(weights > 0)
    if not name.startswith("ScaledDotProduct") or getattr(node, "_saved_is_causal", True):
        return None
    query, key = saved(node, "query"), saved(node, "key")
    if query is None or key is None or query.shape[-2] != length or key.shape[-2] != length:
        return None
    names = [name for name in MASKS if hasattr(node, f"_raw_saved_{name}")]
    if all(getattr(node, f"_raw_saved_{name}").data is None for name in names):
        return torch.ones(length - 1, dtype=torch.bool, device=query.device)
    mask = saved(node, names[0])
    if mask is None or mask.shape[-2:] != (length, length):
        return None
    return _next(mask if mask.dtype == torch.bool else mask > HIDDEN)


def _next(is_seen: Tensor) -> Tensor:
    return is_seen.diagonal(1, -2, -1).reshape(-1, is_seen.shape[-1] - 1).any(0)
