"""Names optimizers, and tells the optimizers of one training from those of another beside it.

Muon and AdamW that share a model step in one capture and are one track. The two halves of a GAN step in captures of
their own and are two, named by what they train; the largest model has the plain names.
A new optimizer for parameters that are known already goes on with their track; one for parameters of several tracks,
such as that of a whole model whose layers were trained one by one, opens a track of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.step.track_names import leads, name_of
from mlflow_stability.vocabulary.measured import TRACK

MOST = 16
"""How many of them have names of their own; a script that makes an optimizer for every sample has the rest in one."""


class OptimizerTracks:
    """Which optimizers there are, in the order in which they first stepped."""

    def __init__(self, is_new: Callable[[Optimizer], bool]) -> None:
        self._is_new = is_new
        """Whether an optimizer was made since the last step of any."""
        self._stepped = _by_identity()
        """Those of every training so far."""
        self.begin_training()

    def begin_training(self) -> None:
        """Forget the names: they are of another recording."""
        self._numbers = _by_identity()
        self._tracks = _by_identity()
        self._track_of_parameter = _by_identity()
        self._optimizers_seen = 0
        self._tracks_seen = 0
        self._places: dict[int, str] = {}
        self._together: tuple[int, list[weakref.ref[object]]] = -1, []
        """The track that was asked for last, and its optimizers; anew where one joins."""

    def join(self, optimizer: Optimizer, track: int) -> int:
        """The track of an optimizer; a new one joins `track`, or opens one where that is -1."""
        known = self._tracks.get(optimizer)
        if known is not None:
            return known
        parameters: list[Tensor] = [each for group in optimizer.param_groups for each in group["params"]]
        if track < 0:
            earlier = {self._track_of_parameter.get(each) for each in parameters} - {None}
            track = (earlier.pop() or 0) if len(earlier) == 1 else -1
        if track < 0:
            track = min(self._tracks_seen, MOST - 1)
            self._tracks_seen += 1
            if track not in self._places:
                self._places[track] = self._new_place(optimizer, track)
        for each in parameters:
            self._track_of_parameter[each] = track
        self._tracks[optimizer] = self._stepped[optimizer] = track
        self._together = -1, []
        self._numbers[optimizer] = min(self._optimizers_seen, MOST - 1)
        self._optimizers_seen += 1
        return track

    def track_of(self, optimizer: Optimizer) -> int:
        """The track of an optimizer; -1 where it has none yet."""
        return self._tracks.get(optimizer, -1)

    def together(self, track: int) -> list[Optimizer]:
        """The optimizers of a track: they step in the same captures."""
        if self._together[0] != track:
            self._together = track, [weakref.ref(each) for each, theirs in self._tracks.items() if theirs == track]
        return [each for known in self._together[1] if isinstance(each := known(), Optimizer)]

    def group_place(self, optimizer: Optimizer, group: int) -> str:
        """Where the learning rate of a parameter group belongs: nothing is said of the first."""
        number = self._numbers.get(optimizer, 0)
        words = ([f"optimizer_{number}"] if number else []) + ([f"group_{group}"] if group else [])
        return ".".join(words)

    def track_place(self, track: int) -> str:
        """Where the loss and the norms of a track belong: nothing is said of the main one."""
        return self._places.get(track, "")

    def _new_place(self, optimizer: Optimizer, track: int) -> str:
        """Decided before anything of a track is written, and never changed.

        The main one is the first, or a larger one that is held beside it and steps later.
        """
        taken = set(self._places.values())
        if "" not in taken and leads(optimizer, self._stepped.__contains__, self._is_new):
            return ""
        name = name_of(optimizer) if track < MOST - 1 else ""
        place = f"{TRACK}{name or track}"
        return place if place not in taken else f"{place}_{track}"


def _by_identity() -> MutableMapping[object, int]:
    """A dictionary whose keys die with their objects, and are told apart by identity as tensors must be."""
    mapping: MutableMapping[object, int] = WeakIdKeyDictionary()
    return mapping
