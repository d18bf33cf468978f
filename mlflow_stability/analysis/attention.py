"""Draws where attention looks, and how its entropy went, wherever a run was recorded.

In: a run id, a path, or maps. Out: a matplotlib figure. Guarantees: a path needs no server and loads neither MLflow nor
torch; where a step or a layer is not there, the sentence says which are.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_stability.analysis.asked_for import asked_for
from mlflow_stability.analysis.diagnose import history_of
from mlflow_stability.analysis.run_folder import run_folder
from mlflow_stability.errors import RunNotFoundError, SettingsError
from mlflow_stability.figures.attention.attention_comparison import attention_comparison
from mlflow_stability.figures.attention.attention_entropy import LayerEntropy, attention_entropy
from mlflow_stability.figures.attention.attention_heatmap import attention_heatmap as draw
from mlflow_stability.figures.run_page.curve import Curve, curve_of
from mlflow_stability.figures.style import Picture
from mlflow_stability.tracking.artifacts.folders import MAPS_FOLDERS
from mlflow_stability.tracking.read.stored_attention import StoredAttention, attention_of_folder, attention_of_run
from mlflow_stability.vocabulary.argument import shown, with_known_names
from mlflow_stability.vocabulary.measured.attention_map import AttentionMap
from mlflow_stability.vocabulary.run.run_history import RunHistory

_HEAD = re.compile(r"(?:(?P<layer>.*)\.)?head_(?P<head>\d+)")
_MOST_NAMED = 12

Source = str | os.PathLike[str]


@with_known_names
def attention_heatmap(
    run_id_or_path_or_map: Any,
    step: int | None = None,
    layer: str | int | None = None,
    tracking_uri: str | None = None,
    *,
    title: str = "",
    save_path: str | os.PathLike[str] | None = None,
) -> Picture:
    """Where the heads of one layer look at one step: a panel for each head, and one for their mean.

    Takes the id of a run, the folder of a run in ``mlruns``, or a map that you have. A tensor of weights by head, query
    and key is taken too; of a batch, the first sample is drawn. `title` is written above the picture. `save_path` is a
    file that it is written to. Without `step` the last one is
    drawn, without `layer` (a module's name or its number) the first. The figure is matplotlib's:
    ``figure.savefig("attention.png", dpi=300)``, or the last line of a notebook's cell.

    Raises ``RunNotFoundError`` where there are no maps, and ``SettingsError`` for a step or a layer without one.
    """
    given = run_id_or_path_or_map
    if not isinstance(given, str | os.PathLike | AttentionMap):
        given = _map_of_weights(given, step or 0, str(layer or "attention"))
    if isinstance(given, AttentionMap):
        picture = draw(given, name=title)
    else:
        stored = _stored(given, tracking_uri)
        maps = stored.maps(_step(step, stored.steps, stored.name))
        picture = draw(_layer(layer, maps), name=title or stored.name)
    if save_path is not None:
        picture.savefig(save_path, dpi=150)
    return picture


def _map_of_weights(given: Any, step: int, layer: str) -> AttentionMap:
    """A map of weights by head, query and key; of a batch, of its first sample."""
    given = given.detach().float().cpu().numpy() if hasattr(given, "detach") else given
    try:
        weights = np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError):
        weights = np.zeros(0, np.float32)
    weights = weights[0] if weights.ndim == 4 else weights[None] if weights.ndim == 2 else weights
    if weights.ndim != 3 or not weights.size:
        raise SettingsError(
            "attention_heatmap takes a run id, a path, an AttentionMap, or a tensor of weights; got "
            f"{shown(given)}. Weights have the dimensions (queries, keys), (heads, queries, keys) or (batch, heads, "
            "queries, keys)."
        )
    heads, queries, keys = weights.shape
    logs = np.log(np.where(weights > 0, weights, 1.0))
    entropy = -(weights * logs).sum(-1).mean(-1) / math.log(max(keys, 2))
    causal = queries == keys and keys > 1 and not np.triu(weights, 1).any()
    return AttentionMap(
        step,
        0,
        layer,
        0,
        tuple(range(heads)),
        weights.astype(np.float16),
        weights.mean(0),
        entropy.astype(np.float32),
        np.full(heads, np.nan, np.float32),
        causal=bool(causal),
        tokens=(queries, keys),
    )


@with_known_names
def compare_attention(
    run_a: Source | AttentionMap,
    run_b: Source | AttentionMap,
    step: int | None = None,
    layer: str | int | None = None,
    tracking_uri: str | None = None,
) -> Picture:
    """Where the heads of one layer look in two runs: side by side, their difference, and every head's entropy.

    Takes what ``attention_heatmap`` takes. Without `step` it is the last one that both have; where they share none,
    the last of each. Without `layer` it is the first that both have by name; where they share none, the first of the
    first run and that of the same number in the second, and the picture names both.
    """
    stored = [None if isinstance(each, AttentionMap) else _stored(each, tracking_uri) for each in (run_a, run_b)]
    known = [each for each in stored if each is not None]
    shared = sorted(set.intersection(*(set(each.steps) for each in known))) if known else []
    if step is None and shared:
        step = shared[-1]
    elif step is not None and len(known) == 2 and step not in shared:
        raise SettingsError(_not_shared(step, known[0], known[1], shared))
    there: list[Sequence[AttentionMap]] = []
    for given, one in zip((run_a, run_b), stored, strict=True):
        if isinstance(given, AttentionMap):
            there.append([given])
        elif one is not None:
            maps = one.maps(_step(step, one.steps, one.name))
            there.append(maps if layer is None else [_layer(layer, maps, one.name)])
    found = _alike(there[0], there[1])
    names = [one.name if one else f"{word} map" for one, word in zip(stored, ("first", "second"), strict=True)]
    if names[0] == names[1]:
        names = [given[:8] if isinstance(given, str) else names[0] for given in (run_a, run_b)]
    return attention_comparison(found[0], found[1], (names[0], names[1]))


@with_known_names
def attention_entropy_plot(run_id_or_path: Source, tracking_uri: str | None = None) -> Picture:
    """How the entropy of every attention head went over the steps: a panel for each layer.

    Takes what ``diagnose`` takes; raises ``RunNotFoundError`` where no entropy was measured.
    """
    history = history_of(run_id_or_path, tracking_uri)
    layers = _entropies(history)
    if not layers:
        raise RunNotFoundError(
            f"{history.source} has no attention_entropy. autolog() records it every attention_every_n_steps "
            "for models with attention."
        )
    return attention_entropy(layers, "Entropy of attention heads", history.name)


def _entropies(history: RunHistory) -> list[LayerEntropy]:
    """The curves of all heads, layers in the order in which they were first measured."""
    layers: dict[str, dict[int, Curve]] = {}
    for metric in history.of("attention_entropy"):
        name = _HEAD.fullmatch(metric.meaning.place)
        if name is not None:
            layers.setdefault(name["layer"] or "", {})[int(name["head"])] = curve_of(metric.series)
    return [
        LayerEntropy(layer, tuple(sorted(heads)), tuple(heads[each] for each in sorted(heads)))
        for layer, heads in layers.items()
    ]


def _stored(source: Source, tracking_uri: str | None) -> StoredAttention:
    asked = asked_for(source, tracking_uri)
    path = asked.path or run_folder(asked.source, tracking_uri)
    if path is None:
        return attention_of_run(asked.source, tracking_uri)
    places = [*(path / root / folder for folder in reversed(MAPS_FOLDERS) for root in ("artifacts", "")), path]
    return attention_of_folder(path, next((each for each in places if each.is_dir()), Path(path)))


def _step(asked: int | None, there: Sequence[int], name: str) -> int:
    if asked is None:
        return there[-1]
    if asked in there:
        return asked
    nearest = min(there, key=lambda each: abs(each - asked))
    raise SettingsError(
        f"{name} has no attention maps of step {asked:,}; the nearest are of step {nearest:,}. There are maps of "
        f"{_listed([f'{each:,}' for each in there], 'steps')}."
    )


def _not_shared(step: int, one: StoredAttention, other: StoredAttention, shared: Sequence[int]) -> str:
    """Which of two runs lacks a step, and what can be compared instead."""
    without = [each.name for each in (one, other) if step not in each.steps]
    if len(without) == 2:
        said = f"Neither {one.name} nor {other.name} has attention maps of step {step:,}."
    else:
        having = other.name if without[0] == one.name and step in other.steps else one.name
        said = f"{without[0]} has no attention maps of step {step:,}, while {having} has."
    if not shared:
        return f"{said} They share no step; without `step` the last of each are compared."
    nearest = min(shared, key=lambda each: abs(each - step))
    both = _listed([f"{each:,}" for each in shared], "steps")
    return f"{said} The nearest step that both have is {nearest:,}. Both have maps of {both}."


def _alike(one: Sequence[AttentionMap], other: Sequence[AttentionMap]) -> tuple[AttentionMap, AttentionMap]:
    """The first layer that both have by name; else the first of the one, and that of its number in the other."""
    for mine in one:
        for theirs in other:
            if mine.layer == theirs.layer:
                return mine, theirs
    return one[0], next((each for each in other if each.layer_number == one[0].layer_number), other[0])


def _layer(asked: str | int | None, maps: Sequence[AttentionMap], run: str = "") -> AttentionMap:
    if asked is None:
        return maps[0]
    if isinstance(asked, int):
        found = [each for each in maps if each.layer_number == asked]
    else:
        found = [each for each in maps if each.layer == asked]
        found = found or [each for each in maps if f".{each.layer}".endswith(f".{asked}")]
    if len(found) == 1:
        return found[0]
    names = _listed([f"{each.layer_number}: {each.layer}" for each in maps], "layers")
    what = "no layer" if not found else "more than one layer"
    where = f" in {run}" if run else ""
    raise SettingsError(f"There is {what} {asked!r}{where} at step {maps[0].step:,}. There are maps of {names}.")


def _listed(names: Sequence[str], many: str) -> str:
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    return f"{len(names)} {many}: {', '.join(names[: _MOST_NAMED - 1])}, …, {names[-1]}"
