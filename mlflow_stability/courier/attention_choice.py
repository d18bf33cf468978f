"""Chooses the layers of a round that get a picture, names their files and draws them.

In: the maps of one step. Out: at most twelve pictures, evenly chosen from the first layer to the last. Promised: each
has a name of its own, and says how many layers there are where some are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.courier.attention_rounds import Round
from mlflow_stability.journal.attention_maps import AttentionMapFile
from mlflow_stability.tracking.attention_parts import AttentionPart, picture_of_layer
from mlflow_stability.vocabulary.attention_map import AttentionMap

MOST_LAYERS = 12


@dataclass(frozen=True, slots=True)
class LayerPicture:
    """A picture that is due."""

    round: Round
    file: AttentionMapFile
    name: str
    """Of its file."""


def pictures_of(found: Round, recording: int, step: int) -> list[LayerPicture]:
    """The pictures of a round of the n-th recording, at the step that the run counts."""
    part = AttentionPart(recording, found.attempt, step)
    names: list[str] = []
    for file in found.files:
        name = picture_of_layer(part, file.layer_number)
        again = sum(each.layer_number == file.layer_number for each in found.files[: len(names)])
        names.append(name if not again else name.replace(".png", f"_{again + 1}.png"))  # of another model
    every, most = len(names), min(len(names), MOST_LAYERS)
    picked = [round(each * (every - 1) / max(1, most - 1)) for each in range(most)]
    return [LayerPicture(found, found.files[each], names[each]) for each in picked]


def png_of(attention: AttentionMap, of: Round) -> bytes:
    """The picture; the first one loads matplotlib."""
    from mlflow_stability.figures.attention_heatmap import attention_heatmap
    from mlflow_stability.figures.sharp_png import sharp_png

    drawn = min(MOST_LAYERS, len(of.files))
    note = f"{drawn} of {of.layers} layers drawn" if drawn < of.layers else ""
    return sharp_png(attention_heatmap(attention, note))
