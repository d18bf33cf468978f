"""Draw where attention looks and how its entropy went, of recorded runs, maps, or tensors of weights.

A path needs no server and loads neither MLflow nor torch. The entropy of given weights is that of a recording: over the
whole batch, 1 where a query attends equally to all keys that it may attend to; the drawn weights are of the first
sample.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.analysis.diagnose import history_of
from mlflow_stability.analysis.source import resolve_source, run_folder
from mlflow_stability.errors import RunNotFoundError, SettingsError
from mlflow_stability.figures.attention_comparison import attention_comparison
from mlflow_stability.figures.attention_entropy import LayerEntropy, attention_entropy
from mlflow_stability.figures.attention_heatmap import attention_heatmap as draw
from mlflow_stability.figures.curve import Curve, curve_of, curve_of_values
from mlflow_stability.figures.style import Picture, saved
from mlflow_stability.tracking.artifacts import MAPS_FOLDERS, StoredAttention, attention_of_folder, attention_of_run
from mlflow_stability.vocabulary.argument import check_arguments, short_repr
from mlflow_stability.vocabulary.measured.layer_arrays import UNNAMED_LAYER, AttentionMap
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.run import RunHistory

_HEAD = re.compile(r"(?:(?P<layer>.*)\.)?head_(?P<head>\d+)")
_MAX_NAMED = 12
_ENTROPY = "Entropy of attention heads"

Source = str | os.PathLike[str]


@check_arguments
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

    Args:
        run_id_or_path_or_map: The id of a run, its folder in ``mlruns``, an `AttentionMap`, or a tensor of weights.
            Its dimensions are (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys). Of a batch, the
            first sample is drawn. A list of tensors has one for each layer.
        step: Without it, the last one.
        layer: A module's name or its number; without it, the first.
        tracking_uri: The server of the run, if it is not ``MLFLOW_TRACKING_URI``.
        title: The title, instead of the usual one.
        save_path: A file that it is written to.

    Returns:
        A matplotlib figure: ``figure.savefig("attention.png", dpi=300)``, or the last line of a notebook's cell.

    Raises:
        RunNotFoundError: There are no maps.
        SettingsError: The run has no attention map of this step or layer.

    Example:

        >>> figure = attention_heatmap("mlruns_fixtures/0/attention_collapse", save_path="attention.png")
    """
    stored, maps = _read("run_id_or_path_or_map", run_id_or_path_or_map, step, layer, tracking_uri)
    if stored is not None:
        maps = stored.maps(_step(step, stored.steps, stored.name))
    chosen = maps[0] if _is_single_layer(run_id_or_path_or_map) else _layer(layer, maps)
    return saved(draw(chosen, name=stored.name if stored else "", title=title), save_path)


@check_arguments
def compare_attention(
    run_a: Any,
    run_b: Any,
    step: int | None = None,
    layer: str | int | None = None,
    tracking_uri: str | None = None,
    *,
    title: str = "",
    title_a: str = "",
    title_b: str = "",
    save_path: str | os.PathLike[str] | None = None,
) -> Picture:
    """Where the heads of one layer look in two runs: side by side, their difference, and every head's entropy.

    Args:
        run_a: What ``attention_heatmap`` takes: a run id, a folder, a map, or weights.
        run_b: The same of the second.
        step: Without it, the last one that both have; where they share none, the last of each.
        layer: Without it, the first that both have by name; where they share none, the first of the first run and that
            of the same number in the second, and the picture names both.
        tracking_uri: The server of the runs, if it is not ``MLFLOW_TRACKING_URI``.
        title: The title, instead of the usual one.
        title_a: What to call the first, instead of the name of its run.
        title_b: What to call the second.
        save_path: A file that it is written to.

    Returns:
        A matplotlib figure: ``figure.savefig("attention.png", dpi=300)``, or the last line of a notebook's cell.

    Raises:
        RunNotFoundError: A run has no maps.
        SettingsError: The run has no attention map of this step or layer.

    Example:

        >>> run = "mlruns_fixtures/0/attention_collapse"
        >>> figure = compare_attention(run, run, title_a="once", title_b="again", save_path="both.png")
    """
    sources = [_read(name, run, step, layer, tracking_uri) for name, run in (("run_a", run_a), ("run_b", run_b))]
    runs = [stored for stored, _ in sources if stored is not None]
    shared = sorted(set.intersection(*(set(stored.steps) for stored in runs))) if runs else []
    if step is None and shared:
        step = shared[-1]
    elif step is not None and len(runs) == 2 and step not in shared:
        raise SettingsError(_not_shared(step, runs[0], runs[1], shared))
    choices: list[Sequence[AttentionMap]] = []
    for run, (stored, given_maps) in zip((run_a, run_b), sources, strict=True):
        maps = given_maps if stored is None else stored.maps(_step(step, stored.steps, stored.name))
        keeps_all = layer is None or _is_single_layer(run)
        choices.append(maps if keeps_all else [_layer(layer, maps, stored.name if stored else "")])
    pairs = (pair for pair in product(*choices) if pair[0].layer == pair[1].layer)
    (first, *_), (second, *_) = choices
    same_number = next((other for other in choices[1] if other.layer_number == first.layer_number), second)
    first, second = next(pairs, (first, same_number))
    words = ("first map", "second map")
    names = [stored.name if stored else word for (stored, _), word in zip(sources, words, strict=True)]
    if names[0] == names[1]:
        names = [run[:8] if isinstance(run, str) else names[0] for run in (run_a, run_b)]
    titles = title_a or names[0], title_b or names[1]
    return saved(attention_comparison(first, second, titles, title, of_runs=bool(runs)), save_path)


@check_arguments
def attention_entropy_plot(
    run_id_or_path: Any,
    tracking_uri: str | None = None,
    *,
    title: str = "",
    save_path: str | os.PathLike[str] | None = None,
) -> Picture:
    """How the entropy of every attention head went over the steps: a panel for each layer.

    Of weights without a step it is drawn over the positions of the queries.

    Args:
        run_id_or_path: What ``diagnose`` takes; or weights as ``attention_heatmap`` takes them, of one step,
            for the entropy of each query, or ``{step: weights}``. Their entropy is over the whole batch.
        tracking_uri: The server of the run, if it is not ``MLFLOW_TRACKING_URI``.
        title: The title, instead of the usual one.
        save_path: A file that it is written to.

    Returns:
        A matplotlib figure: ``figure.savefig("attention.png", dpi=300)``, or the last line of a notebook's cell.

    Raises:
        RunNotFoundError: No entropy was measured.

    Example:

        >>> figure = attention_entropy_plot("mlruns_fixtures/0/attention_collapse", save_path="entropy.png")
    """
    given, axis = run_id_or_path, "step"
    if isinstance(given, str | os.PathLike):
        history = history_of(given, tracking_uri)
        layers, name = _entropies(history), history.name
        if not layers:
            raise RunNotFoundError(
                f"{history.source} has no attention_entropy. autolog() records it every attention_every_n_steps "
                "for models with attention."
            )
    elif isinstance(given, Mapping) and given:
        maps = [m for step, weights in given.items() for m in maps_of_weights(weights, step, argument="run_id_or_path")]
        layers, name = _entropies_of_maps(maps), ""
    else:
        layers, name, axis = entropy_by_position(given), "", "query position"
    subtitle = " · ".join(filter(None, [_ENTROPY if title else "", name]))
    return saved(attention_entropy(layers, title or _ENTROPY, subtitle, axis), save_path)


def _read(
    argument: str, source: Any, step: int | None, layer: str | int | None, tracking_uri: str | None
) -> tuple[StoredAttention | None, Sequence[AttentionMap]]:
    """Return a stored run, or maps of the given weights."""
    if isinstance(source, str | os.PathLike):
        asked = resolve_source(source, tracking_uri)
        path = asked.path or run_folder(asked.source, tracking_uri)
        if path is None:
            return attention_of_run(asked.source, tracking_uri), ()
        places = [*(path / root / folder for folder in reversed(MAPS_FOLDERS) for root in ("artifacts", "")), path]
        return attention_of_folder(path, next((place for place in places if place.is_dir()), path)), ()
    return None, maps_of_weights(source, step or 0, str(layer or "attention"), argument)


def _is_single_layer(source: Any) -> bool:
    return not isinstance(source, str | os.PathLike | list | tuple)


def _entropies_of_maps(maps: Sequence[AttentionMap]) -> list[LayerEntropy]:
    layers: dict[str, list[AttentionMap]] = {}
    for attention in sorted(maps, key=lambda attention: attention.step):
        layers.setdefault(attention.layer, []).append(attention)
    entropies = []
    for layer, of_layer in layers.items():
        heads = min(len(attention.entropy) for attention in of_layer)
        steps = np.array([attention.step for attention in of_layer], np.int64)
        entropies.append(
            _layer_entropy(layer, steps, [np.array([m.entropy[h] for m in of_layer]) for h in range(heads)])
        )
    return entropies


def _layer_entropy(layer: str, x: NDArray[np.int64], heads: Sequence[NDArray[np.float32]]) -> LayerEntropy:
    attempts = np.zeros(len(x), np.int64)
    curves = (
        curve_of_values(Signal("attention_entropy", f"{layer}.head_{head}"), x, values.astype(np.float64), attempts)
        for head, values in enumerate(heads)
    )
    return LayerEntropy(layer, tuple(range(len(heads))), tuple(curves))


def _entropies(history: RunHistory) -> list[LayerEntropy]:
    """Return the recorded entropy, layers in order of their first measurement."""
    layers: dict[str, dict[int, Curve]] = {}
    for metric in history.of("attention_entropy"):
        name = _HEAD.fullmatch(metric.meaning.place)
        if name is not None:
            layers.setdefault(name["layer"] or "", {})[int(name["head"])] = curve_of(metric.series)
    return [
        LayerEntropy(layer, tuple(sorted(heads)), tuple(heads[head] for head in sorted(heads)))
        for layer, heads in layers.items()
    ]


def _step(asked: int | None, steps: Sequence[int], name: str) -> int:
    if asked is None:
        return steps[-1]
    if asked in steps:
        return asked
    nearest = min(steps, key=lambda step: abs(step - asked))
    raise SettingsError(
        f"{name} has no attention maps of step {asked:,}; the nearest are of step {nearest:,}. There are maps of "
        f"{_listed([f'{step:,}' for step in steps], 'steps')}."
    )


def _not_shared(step: int, first: StoredAttention, second: StoredAttention, shared: Sequence[int]) -> str:
    """Return which of two runs lacks a step, and what can be compared instead."""
    without = [run.name for run in (first, second) if step not in run.steps]
    if len(without) == 2:
        missing = f"Neither {first.name} nor {second.name} has attention maps of step {step:,}."
    else:
        having = second.name if step in second.steps else first.name
        missing = f"{without[0]} has no attention maps of step {step:,}, while {having} has."
    if not shared:
        return f"{missing} They share no step; without `step` the last of each are compared."
    nearest = min(shared, key=lambda other: abs(other - step))
    both = _listed([f"{step:,}" for step in shared], "steps")
    return f"{missing} The nearest step that both have is {nearest:,}. Both have maps of {both}."


def _layer(asked: str | int | None, maps: Sequence[AttentionMap], run: str = "") -> AttentionMap:
    if asked is None:
        return maps[0]
    if isinstance(asked, int):
        matches = [m for m in maps if m.layer_number == asked]
    else:
        matches = [m for m in maps if m.layer == asked] or [m for m in maps if f".{m.layer}".endswith(f".{asked}")]
    if len(matches) == 1:
        return matches[0]
    names = _listed([f"{m.layer_number}: {m.layer}" for m in maps], "layers")
    what = "no layer" if not matches else "more than one layer"
    where = f" in {run}" if run else ""
    raise SettingsError(f"There is {what} {asked!r}{where} at step {maps[0].step:,}. There are maps of {names}.")


def _listed(names: Sequence[str], many: str) -> str:
    if len(names) <= _MAX_NAMED:
        return ", ".join(names)
    return f"{len(names)} {many}: {', '.join(names[: _MAX_NAMED - 1])}, …, {names[-1]}"


def maps_of_weights(
    given: Any, step: int = 0, layer: str = UNNAMED_LAYER, argument: str = "weights"
) -> tuple[AttentionMap, ...]:
    """Return one map for each layer; a single one is called `layer`. `argument` is its name in errors."""
    if isinstance(given, AttentionMap):
        return (given,)
    if _has_layers(given):
        return tuple(
            item if isinstance(item, AttentionMap) else _map(item, step, f"layer {number}", number, argument)
            for number, item in enumerate(given)
        )
    return (_map(given, step, layer, 0, argument),)


def entropy_by_position(given: Any) -> list[LayerEntropy]:
    """Return the entropy of each query that may attend to more than one key; a map has that of its sample."""
    layers = list(given) if _has_layers(given) else [given]
    entropies = []
    for number, weights in enumerate(layers):
        name = f"layer {number}" if len(layers) > 1 else UNNAMED_LAYER
        if isinstance(weights, AttentionMap):
            name, every, causal = weights.layer, weights.weights.astype(np.float32)[None], weights.causal
        else:
            every = _weights(weights, "run_id_or_path")
            causal = _is_causal(every)
        positions, rows = _entropy_of_queries(every, causal=causal)
        entropies.append(_layer_entropy(name, positions, list(rows.mean(0))))
    return entropies


def _has_layers(given: Any) -> bool:
    """Whether it is a list of layers, rather than the rows of one matrix."""
    return (
        isinstance(given, list | tuple)
        and len(given) > 0
        and all(isinstance(item, AttentionMap) or len(getattr(item, "shape", ())) > 1 for item in given)
    )


def _weights(given: Any, argument: str) -> NDArray[np.float32]:
    """Return weights by batch, head, query and key."""
    array = given.detach().float().cpu().numpy() if hasattr(given, "detach") else given
    try:
        every = np.asarray(array, dtype=np.float32)
    except (TypeError, ValueError):
        every = np.zeros(0, np.float32)
    if every.ndim in (2, 3):
        every = every[(None,) * (4 - every.ndim)]
    if every.ndim != 4 or not every.size:
        raise SettingsError(
            f"{argument} must be the id of an MLflow run, a path, an AttentionMap, or a tensor of weights; got "
            f"{short_repr(given)}. Weights have the dimensions (queries, keys), (heads, queries, keys) or (batch, "
            "heads, queries, keys); a list of them has one for each layer."
        )
    return every


def _is_causal(weights: NDArray[np.float32]) -> bool:
    *_, queries, keys = weights.shape
    return queries == keys and keys > 1 and not np.triu(weights, 1).any()


def _map(given: Any, step: int, layer: str, number: int, argument: str) -> AttentionMap:
    every = _weights(given, argument)
    _, heads, queries, keys = every.shape
    causal, weights = _is_causal(every), every[0]
    positions, rows = _entropy_of_queries(every, causal=causal)
    return AttentionMap(
        step,
        0,
        layer,
        number,
        tuple(range(heads)),
        weights.astype(np.float16),
        weights.mean(0),
        rows.mean((0, 2)).astype(np.float32) if len(positions) else np.zeros(heads, np.float32),
        np.full(heads, np.nan, np.float32),
        causal=causal,
        tokens=(queries, keys),
    )


def _entropy_of_queries(weights: NDArray[np.float32], *, causal: bool) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the queries with more than one key, and their entropy by batch, head and query."""
    _, _, queries, keys = weights.shape
    allowed = np.arange(1, queries + 1) if causal else np.full(queries, keys)
    choice = np.flatnonzero(allowed > 1)
    logs = np.log(np.where(weights > 0, weights, 1.0))
    rows = -(weights * logs).sum(-1)[..., choice] / np.log(allowed[choice])
    return choice, rows.astype(np.float32)
