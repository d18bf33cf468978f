"""Draws where attention looks, and how its entropy went, wherever a run was recorded.

In: a run id, a path, maps, or tensors of weights. Out: a matplotlib figure. Guarantees: a path needs no server and
loads neither MLflow nor torch; where a step or a layer is not there, the sentence says which are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_stability.analysis.asked_for import asked_for
from mlflow_stability.analysis.attention_weights import entropy_by_position, maps_of_weights
from mlflow_stability.analysis.diagnose import history_of
from mlflow_stability.analysis.run_folder import run_folder
from mlflow_stability.errors import RunNotFoundError, SettingsError
from mlflow_stability.figures.attention import LayerEntropy, attention_comparison, attention_entropy
from mlflow_stability.figures.attention import attention_heatmap as draw
from mlflow_stability.figures.run_page import Curve, curve_of, curve_of_values
from mlflow_stability.figures.style import Picture
from mlflow_stability.tracking.artifacts import MAPS_FOLDERS
from mlflow_stability.tracking.read.stored_attention import StoredAttention, attention_of_folder, attention_of_run
from mlflow_stability.vocabulary.argument import check_arguments
from mlflow_stability.vocabulary.measured import AttentionMap, Signal
from mlflow_stability.vocabulary.run import RunHistory

_HEAD = re.compile(r"(?:(?P<layer>.*)\.)?head_(?P<head>\d+)")
_MOST_NAMED = 12
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
    stored, maps = _given("run_id_or_path_or_map", run_id_or_path_or_map, step, layer, tracking_uri)
    if stored is not None:
        maps = stored.maps(_step(step, stored.steps, stored.name))
    found = maps[0] if _is_one(run_id_or_path_or_map) else _layer(layer, maps)
    return _saved(draw(found, name=stored.name if stored else "", title=title), save_path)


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
    given = [_given(name, each, step, layer, tracking_uri) for name, each in (("run_a", run_a), ("run_b", run_b))]
    stored = [one for one, _ in given]
    known = [each for each in stored if each is not None]
    shared = sorted(set.intersection(*(set(each.steps) for each in known))) if known else []
    if step is None and shared:
        step = shared[-1]
    elif step is not None and len(known) == 2 and step not in shared:
        raise SettingsError(_not_shared(step, known[0], known[1], shared))
    there: list[Sequence[AttentionMap]] = []
    for source, (one, found) in zip((run_a, run_b), given, strict=True):
        maps = found if one is None else one.maps(_step(step, one.steps, one.name))
        chosen = layer is None or _is_one(source)
        there.append(maps if chosen else [_layer(layer, maps, one.name if one else "")])
    pair = _alike(there[0], there[1])
    names = [one.name if one else f"{word} map" for one, word in zip(stored, ("first", "second"), strict=True)]
    if names[0] == names[1]:
        names = [each[:8] if isinstance(each, str) else names[0] for each in (run_a, run_b)]
    named = title_a or names[0], title_b or names[1]
    return _saved(attention_comparison(pair[0], pair[1], named, title, of_runs=bool(known)), save_path)


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
        maps = [each for step, one in given.items() for each in maps_of_weights(one, step, argument="run_id_or_path")]
        layers, name = _entropies_of_maps(maps), ""
    else:
        layers, name, axis = _entropies_by_position(given), "", "query position"
    subtitle = " · ".join(filter(None, [_ENTROPY if title else "", name]))
    return _saved(attention_entropy(layers, title or _ENTROPY, subtitle, axis), save_path)


def _given(
    argument: str, source: Any, step: int | None, layer: str | int | None, tracking_uri: str | None
) -> tuple[StoredAttention | None, Sequence[AttentionMap]]:
    """The run that was asked for, or the maps that were given."""
    if isinstance(source, str | os.PathLike):
        return _stored(source, tracking_uri), ()
    return None, maps_of_weights(source, step or 0, str(layer or "attention"), argument)


def _is_one(source: Any) -> bool:
    """Whether one layer was given, of which `layer` is the name at most."""
    return not isinstance(source, str | os.PathLike | list | tuple)


def _saved(picture: Picture, save_path: str | os.PathLike[str] | None) -> Picture:
    if save_path is not None:
        picture.savefig(save_path, dpi=150)
    return picture


def _entropies_of_maps(maps: Sequence[AttentionMap]) -> list[LayerEntropy]:
    """The same curves of maps."""
    layers: dict[str, list[AttentionMap]] = {}
    for each in sorted(maps, key=lambda one: one.step):
        layers.setdefault(each.layer, []).append(each)
    found = []
    for layer, there in layers.items():
        heads = tuple(range(min(len(each.entropy) for each in there)))
        steps = np.array([each.step for each in there], np.int64)
        curves = [
            curve_of_values(
                Signal("attention_entropy", f"{layer}.head_{head}"),
                steps,
                np.array([each.entropy[head] for each in there], np.float64),
                np.zeros(len(there), np.int64),
            )
            for head in heads
        ]
        found.append(LayerEntropy(layer, heads, tuple(curves)))
    return found


def _entropies_by_position(given: Any) -> list[LayerEntropy]:
    layers = []
    for layer in entropy_by_position(given, "run_id_or_path"):
        heads = tuple(range(len(layer.entropy)))
        attempts = np.zeros(len(layer.positions), np.int64)
        curves = [
            curve_of_values(
                Signal("attention_entropy", f"{layer.layer}.head_{head}"),
                layer.positions,
                layer.entropy[head].astype(np.float64),
                attempts,
            )
            for head in heads
        ]
        layers.append(LayerEntropy(layer.layer, heads, tuple(curves)))
    return layers


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
