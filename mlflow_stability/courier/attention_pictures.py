"""Carries pictures of attention maps into the run: as files, and into its charts with a slider over the steps.

In: the folder of a recording, where the training puts maps. Out: `stability/attention/step_000500_layer0.png`, and the
same under the key `stability/attention/<layer>`. Promised: at most twenty steps and twelve layers of each; drawing
takes at most a twentieth of one core while the training goes on, and a few seconds when it is over; a picture that
cannot be drawn or is refused is told of once and given up; one that cannot be sent is sent when the store is back.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow_stability.courier.attention_rounds import Round, RoundReader, Thinning
from mlflow_stability.courier.delivered import Delivered
from mlflow_stability.journal.attention_maps import AttentionMapFile, read_attention_map
from mlflow_stability.tracking.attention_parts import ATTENTION_FOLDER, AttentionPart, picture_of_layer
from mlflow_stability.tracking.run_images import RunImages, image_key
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.tracking.store_trouble import RefusedError

MOST_STEPS = 20
MOST_LAYERS = 12
THINNING = Thinning(dense=8, growth=1.5, most=MOST_STEPS - 1)
"""The one that is left is the last of the training."""
_PAUSE = 20.0
"""How long nothing is drawn after a picture, as many times as that took."""
_LAST_SECONDS = 20.0
"""How long is drawn after the end of the training, which waits; the maps are in the run and can be drawn any time."""
_logger = logging.getLogger("mlflow_stability.courier")


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A picture that has not arrived yet."""

    file_name: str
    key: str
    step: int
    time: float
    content: bytes


class AttentionPictures:
    """The pictures of the attention of one recording."""

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        self.done = False
        self.reached = 1 << 62
        """Nothing of the journal waits for them."""
        self._delivered = delivered
        self._writer = writer
        self._images: RunImages | None = None
        self._rounds = RoundReader(delivered.folder, "pictures", THINNING)
        self._round: Round | None = None
        self._to_draw: deque[tuple[AttentionMapFile, str]] = deque()
        """Of this round, each with what its file is called."""
        self._drawn: _Drawn | None = None
        self._draw_at = 0.0
        self._over_since: float | None = None
        self._told: set[str] = set()

    def advance(self, over: bool) -> bool:
        """Draw one picture and send it, where it is time to. `over`: draw the last ones without a pause."""
        now = time.monotonic()
        if over and self._over_since is None:
            self._over_since = now
        if self._round is None:
            found = self._rounds.next(over, time.time())
            if found is None:
                self.done = over
                return False
            self._to_draw = deque(self._chosen(found) if found.is_kept else ())
            self._round = found
        if self._to_draw and self._drawn is None:
            if not over and now < self._draw_at:
                return False
            self._draw(*self._to_draw[0])
        self._send()
        if self._to_draw:
            self._to_draw.popleft()
        if not self._to_draw:
            self._rounds.passed(self._round)
            self._round = None
        return True

    def _chosen(self, found: Round) -> list[tuple[AttentionMapFile, str]]:
        """The layers to draw, evenly chosen, as long as there is room for another step."""
        step = found.step + self._delivered.offset
        if self._images is None:
            self._images = self._writer.images()
        there = self._images.steps(self._section())
        if step not in there and len(there) >= MOST_STEPS - (not found.is_last):
            return []
        part = AttentionPart(self._delivered.number or 0, found.attempt, step)
        names: list[str] = []
        for file in found.files:
            name = picture_of_layer(part, file.layer_number)
            again = sum(each.layer_number == file.layer_number for each in found.files[: len(names)])
            names.append(name if not again else name.replace(".png", f"_{again + 1}.png"))  # of another model
        every, most = len(names), min(len(names), MOST_LAYERS)
        picked = [round(each * (every - 1) / max(1, most - 1)) for each in range(most)]
        return [(found.files[each], names[each]) for each in picked]

    def _draw(self, file: AttentionMapFile, name: str) -> None:
        """The picture; the first one loads matplotlib."""
        assert self._round is not None
        began = time.monotonic()
        if self._over_since is not None and began - self._over_since > _LAST_SECONDS:
            count = len(self._to_draw)
            said = f"{count} pictures of attention were not drawn, for the training is over and waits."
            self._tell("late", f"{said} mlflow_stability.attention_heatmap() draws them.")
            return
        try:
            from mlflow_stability.figures.attention_heatmap import attention_heatmap
            from mlflow_stability.figures.sharp_png import sharp_png

            attention = read_attention_map(file.path)
            attention = replace(attention, step=attention.step + self._delivered.offset)
            left_out = len(self._round.files) - MOST_LAYERS
            note = f"{left_out} of {len(self._round.files)} layers not drawn" if left_out > 0 else ""
            content = sharp_png(attention_heatmap(attention, note))
        except Exception as error:  # whatever it is, it must not hold the delivery up
            self._tell("draw", f"No picture {name}: {type(error).__name__}, {error}. Everything else is delivered.")
            return
        key = image_key(self._delivered.section, "attention", attention.layer or "model")
        self._drawn = _Drawn(name, key, attention.step, self._round.time, content)
        self._draw_at = time.monotonic() + _PAUSE * (time.monotonic() - began)

    def _send(self) -> None:
        if self._drawn is None:
            return
        drawn = self._drawn
        assert self._images is not None
        try:
            with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
                file = Path(room, drawn.file_name)
                file.write_bytes(drawn.content)
                self._writer.upload(file, ATTENTION_FOLDER)
                self._images.log(file, drawn.key, drawn.step, drawn.time)
        except (OSError, RefusedError) as error:
            self._tell("send", f"No picture {drawn.file_name}: {error}. Everything else is delivered.")
        self._drawn = None

    def _section(self) -> str:
        return f"{self._delivered.section}/attention"

    def _tell(self, about: str, what: str) -> None:
        if about not in self._told:
            self._told.add(about)
            _logger.warning("%s", what)
