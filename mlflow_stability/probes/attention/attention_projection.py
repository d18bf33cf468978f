"""Computes the queries and keys of `nn.MultiheadAttention` once more, for its own are inside of one function of torch.

In: what `torch.nn.functional.multi_head_attention_forward` was called with, or a module and what it was called with.
Out: its scores. Guarantees: the same scores, whatever path torch takes to them: with weights or without, fused or not,
padded into nested tensors or not.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlflow_stability.probes.attention.attention_scores import ProductScores, in_wide

_FUNCTION = inspect.signature(functional.multi_head_attention_forward)
_MODULE = inspect.signature(nn.MultiheadAttention.forward)
_LAYER = inspect.signature(nn.TransformerEncoderLayer.forward)


def scores_of_function(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProductScores:
    """The scores of one call of the function."""
    given = _FUNCTION.bind(*args, **kwargs)
    given.apply_defaults()
    return _scores(given.arguments)


def scores_of_module(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProductScores:
    """The scores of one call of the module."""
    given = _MODULE.bind(module, *args, **kwargs)
    given.apply_defaults()
    said = dict(given.arguments)
    tensors = [said[name] for name in ("query", "key", "value")]
    padding, nested = said["key_padding_mask"], tensors[0].is_nested
    if nested:
        tensors, padding = _padded(tensors[0])
    if module.batch_first and tensors[0].dim() == 3:
        tensors = [each.transpose(0, 1) for each in tensors]
    said.update(zip(("query", "key", "value"), tensors, strict=True), key_padding_mask=padding)
    for name in ("in_proj_weight", "in_proj_bias", "bias_k", "q_proj_weight", "k_proj_weight"):
        said[name] = getattr(module, name)
    said.update(num_heads=module.num_heads, add_zero_attn=module.add_zero_attn, static_k=None)
    said["use_separate_proj_weight"] = not module._qkv_same_embed_dim
    scores = _scores(said)
    # Queries of the padding are not there either.
    return replace(scores, masks=[*scores.masks, ~padding[:, None, :, None]]) if nested else scores


def scores_of_layer(layer: nn.TransformerEncoderLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProductScores:
    """The scores of one call of a layer whose attention was not called, for torch has fused all of the layer."""
    given = _LAYER.bind(layer, *args, **kwargs)
    given.apply_defaults()
    said = given.arguments
    inputs, padding = said["src"], said["src_key_padding_mask"]
    if layer.norm_first:
        norm = layer.norm1
        inputs = functional.layer_norm(inputs, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    named = {"key_padding_mask": padding, "attn_mask": said["src_mask"], "need_weights": True}
    return scores_of_module(layer.self_attn, (inputs, inputs, inputs), named)


def _scores(said: dict[str, Any]) -> ProductScores:
    query, key = said["query"], said["key"]
    padding, mask = said["key_padding_mask"], said["attn_mask"]
    if query.dim() == 2:
        query, key = query[:, None], key[:, None]
        padding = None if padding is None else padding[None]
    heads = said["num_heads"]
    queries, samples, width = query.shape
    weight_of_query, weight_of_key, bias_of_query, bias_of_key = _weights(said, width)
    query = _projected(query, weight_of_query, bias_of_query)
    key = _projected(key, weight_of_key, bias_of_key)
    masks, diagonal = [], None
    if said["is_causal"] and padding is None and not said["need_weights"]:
        diagonal = 0  # this is how torch takes the hint: the mask itself is not looked at
    elif mask is not None:
        mask = mask.view(1 if mask.dim() == 2 else samples, -1, queries, key.shape[0])
        masks.append(_allowing(mask))
    if padding is not None:
        masks.append(_allowing(padding.view(samples, 1, 1, key.shape[0])))
    if said["bias_k"] is not None:
        key = torch.cat((key, in_wide(said["bias_k"]).expand(1, samples, width)))
        masks = [_with_one_more(each) for each in masks]
    key = _by_head(key, heads) if said["static_k"] is None else said["static_k"].unflatten(0, (samples, heads))
    if said["add_zero_attn"]:
        key = functional.pad(key, (0, 0, 0, 1))
        masks = [_with_one_more(each) for each in masks]
    return ProductScores(_by_head(query, heads), key, 1 / math.sqrt(width // heads), masks, diagonal)


def _weights(said: dict[str, Any], width: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    bias = said["in_proj_bias"]
    biases = (None, None) if bias is None else (bias[:width], bias[width : 2 * width])
    if said["use_separate_proj_weight"]:
        return said["q_proj_weight"], said["k_proj_weight"], *biases
    weight = said["in_proj_weight"]
    return weight[:width], weight[width : 2 * width], *biases


def _projected(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(in_wide(inputs), in_wide(weight), None if bias is None else in_wide(bias))


def _by_head(tensor: Tensor, heads: int) -> Tensor:
    """From place, sample, feature to sample, head, place, feature."""
    return tensor.view(*tensor.shape[:2], heads, -1).permute(1, 2, 0, 3)


def _allowing(mask: Tensor) -> Tensor:
    """Here a true value forbids; elsewhere it allows."""
    return ~mask if mask.dtype is torch.bool else mask


def _with_one_more(mask: Tensor) -> Tensor:
    """For a key that every query may look at."""
    return functional.pad(mask, (0, 1), value=1 if mask.dtype is torch.bool else 0)


def _padded(nested: Tensor) -> tuple[list[Tensor], Tensor]:
    """A nested tensor as a plain one, and where it is nothing but padding."""
    plain = nested.to_padded_tensor(0.0)
    filled = torch.ones_like(nested).to_padded_tensor(0.0)
    return [plain, plain, plain], filled[..., 0] == 0
