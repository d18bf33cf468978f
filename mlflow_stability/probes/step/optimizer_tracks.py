"""Names of optimizers, and of the trainings that they belong to.

Muon and AdamW that share a model step in one capture and are one track. The two halves of a GAN step in captures of
their own and are two, named by what they train; the largest model has the plain names. A new optimizer for parameters
of one track continues it; one for parameters of several tracks opens a track of its own.

Names come from the script: the module's place in its model, else its class, else the variable or attribute that holds
it or its optimizer. They are chosen before the first step. Local variables are not read, because reading them keeps
them alive.
"""

from __future__ import annotations

import gc
import re
import types
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.model_discovery import Kind, outermost, parameters_in, plain_name, remembered
from mlflow_stability.vocabulary.measured.signal import MAX_TRACKS, TRACK

MAX_NAMED = MAX_TRACKS  # optimizers with names of their own; an optimizer for every sample shares the last
MAX_RIVALS = 8  # this many optimizers of one training are made for single parameters or samples
MAX_NAME_CHARACTERS = 40
_Predicate = Callable[[Optimizer], bool]
_GENERIC_NAMES = frozenset(
    {"", "model", "module", "net", "network", "nn", "self", "optimizer", "optim", "opt", "params"}
)


class OptimizerTracks:
    """The optimizers in the order of their first steps."""

    def __init__(self, is_new: Callable[[Optimizer], bool]) -> None:
        self._is_new = is_new  # whether an optimizer was made since the last step of any
        self._stepped = _by_identity()  # the optimizers of every training
        self.begin_training()

    def begin_training(self) -> None:
        """Forget the names of another recording."""
        self._numbers = _by_identity()
        self._tracks = _by_identity()
        self._track_of_parameter = _by_identity()
        self._optimizer_count = 0
        self._track_count = 0
        self._places: dict[int, str] = {}
        self._together: tuple[int, list[weakref.ref[object]]] = -1, []
        """The track that was asked for last, and its optimizers."""

    def join(self, optimizer: Optimizer, track: int) -> int:
        """Return the track of an optimizer; a new optimizer joins `track`, or opens a track where that is -1."""
        own_track = self._tracks.get(optimizer)
        if own_track is not None:
            return own_track
        parameters = parameters_of(optimizer)
        if track < 0:
            earlier = {self._track_of_parameter.get(parameter) for parameter in parameters} - {None}
            track = (earlier.pop() or 0) if len(earlier) == 1 else -1
        if track < 0:
            track = min(self._track_count, MAX_NAMED - 1)
            self._track_count += 1
            if track not in self._places:
                self._places[track] = self._new_place(optimizer, track)
        for parameter in parameters:
            self._track_of_parameter[parameter] = track
        self._tracks[optimizer] = self._stepped[optimizer] = track
        self._together = -1, []
        self._numbers[optimizer] = min(self._optimizer_count, MAX_NAMED - 1)
        self._optimizer_count += 1
        return track

    def track_of(self, optimizer: Optimizer) -> int:
        """Return the track of an optimizer, or -1 where it has none yet."""
        return self._tracks.get(optimizer, -1)

    def together(self, track: int) -> list[Optimizer]:
        """Return the optimizers of a track, which step in the same captures."""
        if self._together[0] != track:
            self._together = (
                track,
                [weakref.ref(optimizer) for optimizer, number in self._tracks.items() if number == track],
            )
        return [optimizer for alive in self._together[1] if isinstance(optimizer := alive(), Optimizer)]

    def group_place(self, optimizer: Optimizer, group: int) -> str:
        """Return the place of the learning rate of a parameter group; empty for the first."""
        number = self._numbers.get(optimizer, 0)
        words = ([f"optimizer_{number}"] if number else []) + ([f"group_{group}"] if group else [])
        return ".".join(words)

    def track_place(self, track: int) -> str:
        """Return the place of the loss and norms of a track; empty for the main one."""
        return self._places.get(track, "")

    def _new_place(self, optimizer: Optimizer, track: int) -> str:
        """Chosen before anything of a track is written, and never changed.

        The main track is the first, or a larger one that is held beside it and steps later.
        """
        used = set(self._places.values())
        if "" not in used and _leads(optimizer, self._stepped.__contains__, self._is_new):
            return ""
        modules, optimizers = remembered(Kind.MODULE, Kind.OPTIMIZER)
        is_named = track < MAX_NAMED - 1 and len(optimizers) > 1
        name = _part_of([optimizer], modules)[0].name if is_named else ""
        place = f"{TRACK}{name or track}"
        return place if place not in used else f"{place}_{track}"


def _by_identity() -> MutableMapping[object, int]:
    """A dictionary that does not keep its keys alive, and compares them by identity, as tensors must be."""
    mapping: MutableMapping[object, int] = WeakIdKeyDictionary()
    return mapping


def _leads(optimizer: Optimizer, has_stepped: _Predicate, is_new: _Predicate) -> bool:
    """Return whether no other optimizer of the same training that has yet to step trains a larger model.

    `is_new` returns whether an optimizer was made since the last step of any.
    """
    modules, optimizers = remembered(Kind.MODULE, Kind.OPTIMIZER)
    others = [other for other in optimizers if other is not optimizer and _is_fresh(other, optimizer, has_stepped)]
    if not others:
        return True
    own_part, *parts = _part_of([optimizer, *others], modules)
    period = is_new(optimizer)
    rivals = [
        other
        for other, part in zip(others, parts, strict=True)
        if _is_beside(part, own_part, made_together=is_new(other) == period)
    ]
    return len(rivals) >= MAX_RIVALS or all(_size(rival) <= _size(optimizer) for rival in rivals)


def _is_fresh(other: Optimizer, optimizer: Optimizer, has_stepped: _Predicate) -> bool:
    """Whether it has yet to step, and has no gradients, which would be used in the same step."""
    if has_stepped(other) or (other.state and not optimizer.state):
        return False
    return all(parameter.grad is None for parameter in parameters_of(other))


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a model that an optimizer trains."""

    root: Module | None  # the outermost module that has all of its parameters
    path: str  # path to the first module in it that has them and no others
    names: tuple[str, ...]  # names in the script, the best first
    holders: frozenset[int]
    """By identity: objects and namespaces that hold it or its model, and the model where it is a part of that."""

    @property
    def name(self) -> str:
        return next((plain for name in self.names if (plain := _plain(name)) not in _GENERIC_NAMES), "")


def _is_beside(part: _Part, other: _Part, made_together: bool) -> bool:
    """Whether both belong to one training, and each has its own model or part of one."""
    if part.root is other.root and not (part.path and other.path):
        return False
    if part.holders or other.holders:
        return bool(part.holders & other.holders)
    # Only local variables hold both. Halves of one training have different classes, and are made without a step in
    # between: what an earlier training left in memory was made before it.
    return bool(part.name and other.name) and part.name != other.name and made_together


def _part_of(optimizers: Sequence[Optimizer], modules: Sequence[Module]) -> list[_Part]:
    """The part of each optimizer, from two searches through memory however many there are."""
    owners = _owners(optimizers, modules)
    held = _named_holders([*optimizers, *(root for root, _ in owners if root is not None)])
    parts = []
    for optimizer, (root, path) in zip(optimizers, owners, strict=True):
        of_optimizer, of_root = held.get(id(optimizer), []), held.get(id(root), [])
        names = [path.rpartition(".")[2]]
        if root is not None and not path:
            kind = type(root)
            names += [] if kind.__module__.startswith("torch.") else [kind.__name__]
            names += [name for _, name in of_root]
        names += [re.sub(r"_?(optimi[sz]er|optim|opt)s?_?", "", name, flags=re.I) for _, name in of_optimizer]
        holders = frozenset(id(holder) for holder, _ in (*of_optimizer, *of_root))
        parts.append(_Part(root, path, tuple(names), holders | ({id(root)} if root is not None and path else set())))
    return parts


def _owners(optimizers: Sequence[Optimizer], modules: Sequence[Module]) -> list[tuple[Module | None, str]]:
    """For each the outermost module with all of its parameters, and the path to the first with no others."""
    roots = [(root, _ids(root)) for root in outermost(modules) if not isinstance(root, GraphModule)]
    paths: dict[int, dict[frozenset[int], str]] = {}
    owners: list[tuple[Module | None, str]] = []
    for optimizer in optimizers:
        wanted = frozenset(map(id, parameters_of(optimizer)))
        root = next((root for root, owned in roots if wanted <= owned), None)
        if root is not None and id(root) not in paths:
            paths[id(root)] = _paths_in(root)
        owners.append((root, "" if root is None else paths[id(root)].get(wanted, "")))
    return owners


def _paths_in(root: Module) -> dict[frozenset[int], str]:
    """By sets of parameters, the path to the first module with exactly these."""
    paths: dict[frozenset[int], str] = {}
    for name, module in Module.named_modules(root):
        paths.setdefault(_ids(module), plain_name(name))
    return paths


def _ids(module: Module) -> frozenset[int]:
    return frozenset(map(id, parameters_in(module)))


def _size(optimizer: Optimizer) -> int:
    return sum(parameter.numel() for parameter in parameters_of(optimizer))


def _named_holders(wanted: Sequence[object]) -> dict[int, list[tuple[object, str]]]:
    """By identity: the attributes and global variables that hold these objects, with their owners."""
    sought = {id(target): target for target in wanted}
    entries: list[tuple[object, str, int]] = []
    for holder in gc.get_referrers(*sought.values()):
        if isinstance(holder, types.FrameType):
            continue
        names = holder if type(holder) is dict else getattr(holder, "__dict__", None)
        if type(names) is not dict or names is sought:
            continue
        for key, value in list(names.items()):
            if id(value) in sought and isinstance(key, str) and not key.startswith("_"):
                entries.append((holder, key, id(value)))
    instances = _instances_of([holder for holder, _, _ in entries if type(holder) is dict])
    holders: dict[int, list[tuple[object, str]]] = {}
    for holder, key, target in entries:
        holders.setdefault(target, []).append((instances.get(id(holder), holder), key))
    return holders


def _instances_of(namespaces: Sequence[object]) -> dict[int, object]:
    """By the identity of a namespace, the object that it belongs to."""
    sought = set(map(id, namespaces))
    instances: dict[int, object] = {}
    for referrer in gc.get_referrers(*namespaces) if namespaces else ():
        own = id(getattr(referrer, "__dict__", None))
        if own in sought:
            instances.setdefault(own, referrer)
    return instances


def _plain(name: str) -> str:
    """A name as part of a key: small letters, digits and underscores."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:MAX_NAME_CHARACTERS]
    return "" if plain.isdigit() else plain
