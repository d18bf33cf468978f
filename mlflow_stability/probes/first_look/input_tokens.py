"""Compares the targets of a language model with the tokens of its input, which the graph of a loss holds.

Guarantees: no device is waited for; no hook for saved tensors runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.first_look.loss_graph import NONE, node_name, nodes_behind, saved, shape_of
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
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
    topic="loss_statistics",
)
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
