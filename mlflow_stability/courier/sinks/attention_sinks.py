"""Deliver attention maps as data, one part for each measured step, and as pictures with a step slider.

Guarantees: a part that is sent twice replaces itself; maps of one step at a time are in memory; unreadable maps are
skipped and logged; a map's file is deleted once every reader has passed it; a new courier continues where the last one
was. Pictures are of at most twenty steps and twelve layers; drawing takes at most 5 % of one core during training; the
end of the training waits a few seconds at most, with the last step drawn first. What was left out is named in the run.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path

from mlflow_stability.courier.processes import written_at
from mlflow_stability.courier.progress import Delivered, write_page
from mlflow_stability.courier.sinks.sink import RunSink, readable, temporary_file
from mlflow_stability.errors import TrackingError
from mlflow_stability.journal.array_files import AttentionMapFile, attention_map_files, read_attention_map
from mlflow_stability.journal.layout import read_page, recording_folders
from mlflow_stability.tracking.artifacts import (
    ATTENTION_FOLDER,
    MAPS_FOLDER,
    AttentionPart,
    picture_of_layer,
    write_attention_part,
)
from mlflow_stability.tracking.client import RefusedError
from mlflow_stability.tracking.run_files import RunImages, image_key
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.tracking.tag_names import FOR_PROGRAMS
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap

PAGE = "attention.json"  # positions of the readers
READERS = ("maps", "pictures")
_SETTLED = 20.0  # seconds after which the newest round is complete
_logger = logging.getLogger("mlflow_stability.courier")


@dataclass(frozen=True, slots=True)
class Thinning:
    """Which rounds are kept, counted from 1."""

    dense: int  # all of the first rounds up to this one
    growth: float  # ratio of further ones
    most: int  # limit, besides the last round

    def keeps(self, number: int) -> bool:
        at = kept = min(number, self.dense, self.most)
        while at < number and kept < self.most:
            at = max(at + 1, math.ceil(at * self.growth))
            kept += 1
        return at == number


@dataclass(frozen=True, slots=True)
class Round:
    attempt: int
    step: int  # as the training counts it
    files: tuple[AttentionMapFile, ...]
    time: float  # when the last of them was written
    is_kept: bool
    is_first: bool  # first round of the recording

    @property
    def layers(self) -> int:
        """Number of attention layers; only some of many have maps, but always the last one."""
        return max(len(self.files), *(file.layer_number + 1 for file in self.files))


class RoundReader:
    """Position of one reader of the rounds: `maps` or `pictures`."""

    def __init__(self, recording: Path, name: str, thinning: Thinning) -> None:
        self._recording = recording
        self._name = name
        self._thinning = thinning
        saved = read_page(recording / PAGE).get(name, {})
        self._until: tuple[int, int] = (int(saved.get("attempt", -1)), int(saved.get("step", -1)))
        self._passed = int(saved.get("passed", 0))

    def next(self, over: bool, now: float) -> Round | None:
        """Return the next round, once it is complete."""
        rounds = self._waiting(over, 2)
        if not rounds:
            return None
        may_be_last = len(rounds) == 1 and not over
        settled = rounds[0].is_kept and now - rounds[0].time >= _SETTLED
        return None if may_be_last and not settled else rounds[0]

    def rest(self) -> list[Round]:
        return self._waiting(over=True)

    def passed(self, passed: Round) -> None:
        """Note that a round is done, and remove files that all readers have passed."""
        self._until = (passed.attempt, passed.step)
        self._passed += 1
        page = read_page(self._recording / PAGE)
        page[self._name] = {"attempt": passed.attempt, "step": passed.step, "passed": self._passed}
        if write_page(self._recording / PAGE, page) and all(name in page for name in READERS):
            until = min((int(page[name]["attempt"]), int(page[name]["step"])) for name in READERS)
            for file in attention_map_files(self._recording):
                if _place(file) <= until:
                    file.path.unlink(missing_ok=True)

    def _waiting(self, over: bool, most: int | None = None) -> list[Round]:
        files = [file for file in attention_map_files(self._recording) if _place(file) > self._until]
        groups = [tuple(group) for _, group in islice(groupby(files, _place), most)]
        rounds = []
        for number, group in enumerate(groups, self._passed + 1):
            is_last = over and group[-1] is files[-1]
            written = max(written_at(file.path) for file in group)
            is_kept = is_last or self._thinning.keeps(number)
            rounds.append(Round(group[0].attempt, group[0].step, group, written, is_kept, number == 1))
        return rounds


def _place(file: AttentionMapFile) -> tuple[int, int]:
    return file.attempt, file.step


MAPS_THINNING = Thinning(dense=20, growth=1.1, most=100)


class AttentionSink(RunSink):
    words = "attention maps"

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__(delivered, writer)
        self._rounds = RoundReader(delivered.folder, "maps", MAPS_THINNING)
        self._refused = False

    def flush(self, over: bool) -> bool:
        """Send the maps of the next step, if any."""
        maps = self._rounds.next(over, time.time())
        if maps is None:
            return self.rest(over)
        if maps.is_kept and not self._refused:
            self._send(maps)
        self._rounds.passed(maps)
        return True

    def _send(self, maps_of_step: Round) -> None:
        maps = [m for file in maps_of_step.files if (m := readable(read_attention_map, file.path)) is not None]
        if not maps:
            return
        part = AttentionPart(self._number, maps_of_step.attempt, maps_of_step.step + self._offset)
        try:
            self.upload(MAPS_FOLDER, part.name, lambda file: write_attention_part(file, maps, self._offset))
        except RefusedError as error:
            self._refused = True
            _logger.warning("Attention maps not delivered: %s", error)


MOST_LAYERS = 12


@dataclass(frozen=True, slots=True)
class LayerPicture:
    round: Round
    file: AttentionMapFile
    name: str  # name of its file


def pictures_of(maps: Round, recording: int, step: int) -> list[LayerPicture]:
    part = AttentionPart(recording, maps.attempt, step)
    names: list[str] = []
    for file in maps.files:
        name = picture_of_layer(part, file.layer_number)
        again = sum(other.layer_number == file.layer_number for other in maps.files[: len(names)])
        names.append(name if not again else name.replace(".png", f"_{again + 1}.png"))  # of another model
    every, most = len(names), min(len(names), MOST_LAYERS)
    picked = [round(number * (every - 1) / max(1, most - 1)) for number in range(most)]
    return [LayerPicture(maps, maps.files[index], names[index]) for index in picked]


def png_of(attention: AttentionMap, of: Round) -> bytes:
    """Draw a picture; the first one imports matplotlib."""
    from mlflow_stability.figures.attention_heatmap import attention_heatmap
    from mlflow_stability.figures.style import sharp_png

    drawn = min(MOST_LAYERS, len(of.files))
    note = f"{drawn} of {of.layers} layers drawn" if drawn < of.layers else ""
    return sharp_png(attention_heatmap(attention, note))


MOST_STEPS = 20
BEGIN = 0  # MLflow opens a picture's card at this step: it gets the first picture, which names its own step
PICTURES_THINNING = Thinning(dense=8, growth=1.5, most=MOST_STEPS - 1)
"""One step is reserved for the last of the training."""
TAG = f"{FOR_PROGRAMS}attention_pictures"  # tag that names missing pictures
_PAUSE = 20.0  # pause after a picture, as a multiple of its drawing time
_AWAITED = 10.0  # seconds for which the end of the training waits for pictures
_LAST_SECONDS = 600.0  # seconds for drawing after the end of the training; the maps are in the run anyway
_UNTIL_THEN = "attention_heatmap() draws any layer from the maps."


class AttentionPictures(RunSink):
    words = "attention pictures"

    def __init__(self, delivered: Delivered, writer: RunWriter, alive: Callable[[], bool] = lambda: False) -> None:
        """`alive`: whether the training's process lives, which may train again after this recording."""
        super().__init__(delivered, writer)
        self.awaited = not delivered.complete  # whether the end of the training should wait for them
        self._alive = alive
        self._images: RunImages | None = None
        self._rounds = RoundReader(delivered.folder, "pictures", PICTURES_THINNING)
        self._under_way: list[Round] = []  # rounds that are done when `_to_draw` is empty
        self._to_draw: deque[LayerPicture] = deque()
        self._drawn: tuple[str, bytes] | None = None  # key and content of the first of `_to_draw`, not sent yet
        self._draw_at = 0.0
        self._over_since: float | None = None
        self._spent = 0.0  # seconds of drawing since then
        self._sent: set[str] = set()
        self._numbers: dict[str, int] = {}
        """Number of a layer in the charts: with layers skipped at random, it is not always theirs."""
        self._logged: set[str] = set()
        self._left_out: Counter[int] = Counter()  # number of skipped pictures by step

    def flush(self, over: bool) -> bool:
        """Draw one picture and send it, if it is time. `over`: no more maps will come."""
        now = time.monotonic()
        if over and self._over_since is None:
            self._send()
            # The last round is drawn first: people look at it.
            rounds = self._rounds.rest()
            planned: deque[LayerPicture] = deque()
            steps: set[int] = set()
            for maps in [*rounds[-1:], *rounds[:-1]]:
                if self._has_room(maps, steps):
                    planned.extend(picture for picture in self._pictures_of(maps) if picture.name not in self._sent)
                    steps.add(self._step(maps))
            self._under_way, self._to_draw = rounds, planned
            self._over_since = now
        elif not over and not self._under_way and not self._take_up():
            return False
        if self._over_since is not None and self.awaited and now - self._over_since >= _AWAITED and self._to_draw:
            self._set_tag(f"{len(self._to_draw)} being drawn. {_UNTIL_THEN}")
            self.awaited = False
        if self._to_draw and self._drawn is None:
            if self._is_late(now):
                self._left_out.update(self._step(picture.round) for picture in self._to_draw)
                self._to_draw.clear()
            elif now < self._draw_at and self._is_paced(now):
                return False
            else:
                self._draw(self._to_draw[0])
        self._send()
        if self._to_draw:
            self._to_draw.popleft()
        if self._to_draw:
            return True
        if over and not self.done:
            if self._left_out:
                missing = ", ".join(f"{count} of step {step:,}" for step, count in sorted(self._left_out.items()))
                self._set_tag(f"missing: {missing}. {_UNTIL_THEN}")
                self._log("late", f"Attention pictures not drawn: {missing}. {_UNTIL_THEN}")
            elif self._under_way and not self.awaited:
                self._set_tag("all drawn")
        for passed in self._under_way:
            self._rounds.passed(passed)
        self._under_way = []
        self.done = over
        return not over

    def _take_up(self) -> bool:
        """Start the next round, if any."""
        maps = self._rounds.next(False, time.time())
        if maps is None:
            return False
        self._to_draw = deque(self._pictures_of(maps) if self._has_room(maps) else ())
        self._under_way = [maps]
        return True

    def _has_room(self, maps: Round, planned: set[int] | None = None) -> bool:
        """Whether this round is kept, and may be one more step in the charts."""
        if not maps.is_kept:
            return False
        if self._images is None:
            self._images = self._writer.images()
        there = (self._images.steps(f"{self._delivered.prefix}/attention") - {BEGIN}) | (planned or set())
        reserved = 1 if planned is None else 0  # for the last of the training
        return self._step(maps) in there or len(there) < MOST_STEPS - reserved

    def _pictures_of(self, maps: Round) -> list[LayerPicture]:
        return pictures_of(maps, self._number, self._step(maps))

    def _is_paced(self, now: float) -> bool:
        """Whether a training runs, or may run again."""
        is_awaited = self._over_since is not None and now - self._over_since < _AWAITED
        return not is_awaited and (self._over_since is None or self._alive())

    def _is_late(self, now: float) -> bool:
        if self._over_since is None:
            return False
        return self._spent > _LAST_SECONDS or (now - self._over_since > _LAST_SECONDS and self._alive())

    def _draw(self, picture: LayerPicture) -> None:
        began = time.monotonic()
        try:
            attention = read_attention_map(picture.file.path)
            attention = replace(attention, step=attention.step + self._offset)
            layer = attention.layer or "model"
            number = self._numbers.setdefault(layer, attention.layer_number)
            key = image_key(self._delivered.prefix, "attention", number, layer)
            assert self._images is not None
            if self._images.holds(key, attention.step, picture.round.time):
                return
            self._drawn = key, png_of(attention, picture.round)
        except TrackingError:
            raise
        except Exception as error:  # must not delay the delivery
            self._give_up(picture, "draw", f"{type(error).__name__}, {error}")
            return
        took = time.monotonic() - began
        self._spent += took if self._over_since is not None else 0.0
        beside = max(1, len(recording_folders(self._delivered.folder.parent)))  # recordings share the 5 %
        self._draw_at = time.monotonic() + _PAUSE * took * beside

    def _send(self) -> None:
        if self._drawn is None:
            return
        assert self._images is not None
        picture, (key, content) = self._to_draw[0], self._drawn
        maps = picture.round
        steps = [self._step(maps)] + ([BEGIN] if maps.is_first and not self._offset else [])
        try:
            with temporary_file(picture.name, content) as file:
                self._writer.upload(file, ATTENTION_FOLDER)
                for step in steps:
                    self._images.log(file, key, step, maps.time)
                self._sent.add(picture.name)
        except (OSError, RefusedError) as error:
            self._give_up(picture, "send", str(error))
        self._drawn = None

    def _give_up(self, picture: LayerPicture, trouble: str, error: str) -> None:
        self._left_out[self._step(picture.round)] += 1
        self._log(trouble, f"Picture {picture.name} not drawn: {error}. Everything else is delivered.")

    def _set_tag(self, text: str) -> None:
        self._writer.set_tags({TAG: text})

    def _step(self, maps: Round) -> int:
        return maps.step + self._offset

    def _log(self, trouble: str, text: str) -> None:
        """Log the first trouble of each kind."""
        if trouble not in self._logged:
            self._logged.add(trouble)
            _logger.warning("%s", text)
