"""Targets: metric names, pages of JSON, and checkpoints."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import torch
from fuzz.mutations import damaged, damaged_json
from fuzz.pages import hostile_text
from fuzz.target import Drawn, Target, promised, written
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import _validate_metric_name
from recovery.checkpoints.test_checkpoint_store import STATE as TRAINED

from mlflow_stability.courier.progress import DELIVERED, Delivered
from mlflow_stability.courier.run_of_recording import tags_of_recordings
from mlflow_stability.errors import CheckpointsRefused, SettingsError
from mlflow_stability.journal.journal import FINAL_STATUS, closing_from_page
from mlflow_stability.journal.layout import RANKS, read_page, read_ranks
from mlflow_stability.journal.process_identity import identity_from, identity_in_link, own_identity
from mlflow_stability.kinds.catalog import default_detectors, describe, read_detectors
from mlflow_stability.recovery.checkpoints.state_file import _reader, read_state, write_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import (
    META,
    METADATA,
    OWNER,
    PREFIX,
    STATE,
    CheckpointMeta,
    damage_of,
    listing,
    read_owner,
)
from mlflow_stability.tracking.keys import LONGEST_KEY, fitting_keys, metric_key, parse_key
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result import RunCard, card_from_json, card_to_json
from mlflow_stability.vocabulary.run import Closing
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

WORDS = (
    *("loss", "grad_norm", "train", "val", "stability", "layers", "track_critic", "attention", "1_loss", "blocks.3"),
    *(
        "/",
        ".",
        "..",
        "_",
        "-",
        " ",
        "@",
        ":",
        "//",
        "optimizer_1",
        "group_0",
        "layer",
        "é",
        "损失",
        "a" * 300,
        "%",
        "\n",
        "\0",
    ),
)


def stored_targets(place: Path) -> dict[str, Target]:
    """Return the targets."""
    pages = _pages()
    state = _state(place)
    metadata = _metadata(place)

    def draw_names(rng: Random) -> Drawn:
        return Drawn("names.json", json.dumps([_name(rng) for _ in range(8)]).encode())

    def draw_page(rng: Random) -> Drawn:
        name = rng.choice(list(pages))
        content = json.dumps(damaged_json(pages[name], rng)).encode()
        return Drawn(name, damaged(content, [content], rng) if rng.random() < 0.3 else content)

    def draw_state(rng: Random) -> Drawn:
        name, content = rng.choice(((STATE, state), (STATE, state), (METADATA, metadata)))
        if name == METADATA or rng.random() < 0.3:
            return Drawn(name, damaged(content, [content, metadata], rng))
        return Drawn(name, _repacked(content, rng))

    return {
        "metric_names": Target(60, draw_names, _check_names),
        "json_pages": Target(50, draw_page, _read_page),
        "checkpoints": Target(20, draw_state, _read_checkpoint),
    }


def _name(rng: Random) -> str:
    if rng.random() < 0.2:
        return hostile_text(rng)
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 6)))


def _check_names(drawn: Drawn, _folder: Path) -> bool:
    """Check the promises of metric keys, and that any two names of a log get different keys."""
    names: list[str] = json.loads(drawn.content)
    signals = list(dict.fromkeys(Signal(name.split("@")[0], place) for name in names for place in ("", names[0])))
    keys = {signal: metric_key(signal) for signal in signals}
    promised(len(set(keys.values())) == len(signals), f"two signals share a key: {keys}")
    fitting = fitting_keys(names)
    promised(len(set(fitting.values())) == len(set(names)), f"two names share a key: {fitting}")
    for key in (*keys.values(), *fitting.values()):
        promised(len(key) <= LONGEST_KEY, f"{key} is too long")
        try:
            _validate_metric_name(key)
        except MlflowException as error:
            promised(holds=False, what=f"MLflow refuses {key!r}: {error}")
    paths = {*keys.values()}
    for key in paths:
        promised(not any(other.startswith(f"{key}/") for other in paths), f"{key} is a folder of another key")
        promised(parse_key(key) is not None, f"{key!r} is not read back")
    meanings = metric_meanings(names)
    promised(set(meanings) == set(names), "names are missing")
    places = [meaning.signal for meaning in meanings.values() if not meaning.duplicate_of]
    promised(len(set(places)) == len(places), f"two names are one signal: {meanings}")
    return True


def _pages() -> dict[str, Any]:
    """Return what each page of JSON looks like."""
    identity = own_identity().as_json()
    closing = asdict(Closing("crashed", "ValueError"))
    meta = CheckpointMeta(7, 0.5, "0" * 64, 10, 1.0, good=True, shards=(("a.distcp", 3, "1" * 64),))
    delivered = asdict(Delivered(Path()))
    del delivered["folder"]
    return {
        "card.json": json.loads(card_to_json(RunCard("a", "b", notes=("x",)))),
        META: json.loads(meta.to_json()),
        OWNER: {"run": "a", **identity},
        RANKS: [{"name": "rank0", "process": identity}],
        FINAL_STATUS: {"closing": closing, "step": 3},
        DELIVERED: delivered,
        "link": identity,
        "detectors.json": json.loads(describe(default_detectors())),
        "tag.json": {"id": "a", "number": 1, "host": "h", "pid": 3, "time": 1.0, "settled": True},
    }


def _read_page(drawn: Drawn, folder: Path) -> bool:
    checkpoint = folder / f"{PREFIX}000007-0.5000"
    checkpoint.mkdir(exist_ok=True)
    text = drawn.content.decode("utf-8", "replace")
    file = written(drawn, checkpoint if drawn.name == META else folder)
    try:
        return bool(_PAGES[drawn.name](file, text))
    finally:
        file.unlink()


def _read_link(file: Path, text: str) -> object:
    link = file.with_name("real-link")
    link.unlink(missing_ok=True)
    target = text.replace("\0", "")[:900]
    if not target or len(target.encode("utf-8", "surrogateescape")) > 4000:
        return None
    link.symlink_to(target)
    return identity_from(identity_in_link(link))


def _read_listing(file: Path, _text: str) -> object:
    return [damage_of(item) or item.is_good for item in listing(file.parent.parent)] and listing(file.parent.parent)[
        0
    ].meta


def _read_or_none(read: Callable[[str], object], error: type[Exception]) -> Callable[[Path, str], object]:
    def attempt(_file: Path, text: str) -> object:
        try:
            return read(text)
        except error:
            return None

    return attempt


_PAGES: dict[str, Callable[[Path, str], object]] = {
    "card.json": _read_or_none(card_from_json, ValueError),
    META: _read_listing,
    OWNER: lambda file, _: identity_from(read_owner(file.parent)),
    RANKS: lambda file, _: read_ranks(file.parent),
    FINAL_STATUS: lambda file, _: closing_from_page(read_page(file.parent / FINAL_STATUS)),
    DELIVERED: lambda file, _: Delivered.read(file.parent).run(),
    "link": _read_link,
    "detectors.json": _read_or_none(read_detectors, SettingsError),
    "tag.json": lambda _, text: tags_of_recordings({"mlflow.stability.recording.a": text}),
}


def _state(place: Path) -> bytes:
    file = place / STATE
    write_state(TRAINED, file)
    return file.read_bytes()


def _metadata(place: Path) -> bytes:
    """Return the list of shards that torch writes."""
    from torch.distributed.checkpoint import FileSystemWriter, save

    folder = place / "shards"
    save({"a": torch.zeros(3)}, storage_writer=FileSystemWriter(folder), no_dist=True)
    return (folder / METADATA).read_bytes()


def _repacked(content: bytes, rng: Random) -> bytes:
    """Return a file of torch whose members are damaged inside, with right checksums."""
    packed = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old, zipfile.ZipFile(packed, "w") as new:
        for name in old.namelist():
            inside = old.read(name)
            if name.endswith("data.pkl") or rng.random() < 0.05:
                inside = damaged(inside, [inside], rng)
            new.writestr(zipfile.ZipInfo(name), inside)
    return packed.getvalue()


def _read_checkpoint(drawn: Drawn, folder: Path) -> bool:
    file = written(drawn, folder)
    try:
        if drawn.name == METADATA:
            _reader(folder).read_metadata()
        else:
            read_state(file)
    except CheckpointsRefused:
        return False
    return True
