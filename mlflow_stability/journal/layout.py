"""Where things are in a journal directory.

.mlflow-stability/                      the journal root, mode 0700
  .gitignore                            keeps all of it out of git, where the root is ours
  checkpoints/ batches/                 what outlives the runs
  20261121-034500-4711-3f9a/            one training process
    training                            a link whose target says which process it is
    courier                             a link whose target says which process delivers it
    courier.log                         what the courier had to say
    released                            watching was taken off, though the process may live on
    ranks.json                          which processes train together
    flush                               the number of the last request to deliver everything recorded so far
    status.json                         how far it is
    000-8c1f…/                          one recording: what this process did for one run
      journal  last_words.json          written by the training
      delivered.json                    written by the courier: what has arrived
      alerts.json                       likewise: which alerts were sent; no address is in it
      mirror_TOOL.json                  likewise: what another tool has
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.journal.process_identity import ProcessIdentity, identity_from, own_identity
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.vocabulary.settings import BATCHES_FOLDER, CHECKPOINTS_FOLDER, JOURNAL_FOLDER

TRAINING = "training"
COURIER = "courier"
COURIER_LOG = "courier.log"
RELEASED = "released"
FLUSH = "flush"
STATUS = "status.json"
RANKS = "ranks.json"
DELIVERED = "delivered.json"
ALERTS = "alerts.json"
GITIGNORE = ".gitignore"
OUTLIVE = frozenset({CHECKPOINTS_FOLDER, BATCHES_FOLDER})
"""The folders of a root that are kept when a run is over."""


def mirror_page(recording: Path, tool: str) -> Path:
    """How far a recording is mirrored to another tool."""
    return recording / f"mirror_{tool}.json"


def new_session_folder(root: Path) -> Path:
    """A folder for this training process, with its name in it."""
    folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(2)}"
    make_root(root)
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:  # a courier that was done has just taken the empty root away
        make_root(root)
        folder.mkdir(mode=0o700)
    with contextlib.suppress(OSError):  # where there are no links, nobody knows the process, and nothing is removed
        (folder / TRAINING).symlink_to(json.dumps(own_identity().said()))
    return folder


def make_root(root: Path) -> None:
    """The root of journals, private and kept out of git; a folder of the user's own is left as it is."""
    try:
        root.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if root.name != JOURNAL_FOLDER or (root / GITIGNORE).exists():
            return
    _keep_out_of_git(root)


def remove_empty_root(root: Path) -> None:
    """Leave no trace of a root in which there is nothing but what we put there."""
    try:
        if {each.name for each in root.iterdir()} <= {GITIGNORE}:
            (root / GITIGNORE).unlink(missing_ok=True)
            root.rmdir()
    except FileNotFoundError:
        return
    except OSError:  # another training has begun meanwhile
        _keep_out_of_git(root)


def _keep_out_of_git(root: Path) -> None:
    with contextlib.suppress(OSError):  # a full disk is told of by what needs the room
        (root / GITIGNORE).touch(mode=0o600)  # private as all that is kept here
        (root / GITIGNORE).write_text("*\n")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One process of a training that several make; the first one records."""

    name: str
    """What it is called: its rank and its host."""
    identity: ProcessIdentity


def name_ranks(session: Path, ranks: Sequence[RankProcess]) -> None:
    """Say which processes train together, for the courier."""
    said = [{"name": each.name, "process": each.identity.said()} for each in ranks]
    draft = session / f".{RANKS}"
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(said))
    draft.replace(session / RANKS)


def ranks_of_session(session: Path) -> list[RankProcess]:
    """The processes that train together; none where the training has one, or has not said yet."""
    try:
        said = json.loads((session / RANKS).read_bytes())
        found = [(str(each["name"]), identity_from(each["process"])) for each in said]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [RankProcess(name, ProcessIdentity(0) if identity is None else identity) for name, identity in found]


def ask_to_flush(session: Path, number: int) -> None:
    """Ask for the delivery of everything that was recorded so far; `number`: higher than that of the request before."""
    draft = session / f".{FLUSH}"
    draft.touch(mode=0o600)
    draft.write_text(str(number))
    draft.replace(session / FLUSH)


def flush_asked(session: Path) -> int:
    """The number of the last such request; 0 where there was none."""
    try:
        return int((session / FLUSH).read_text())
    except (OSError, ValueError):
        return 0


def is_done(root: Path) -> bool:
    """Whether nothing is left of a journal root but what outlives the runs: all of it was delivered."""
    names = {each.name for each in root.iterdir()} if root.is_dir() else set()
    return bool(names) and names <= {GITIGNORE, *OUTLIVE}


def recording_folders(session: Path) -> list[Path]:
    """The recordings of a session that are still there, in the order in which they began."""
    return sorted(path.parent for path in session.glob(f"*/{JOURNAL}"))


def session_folders(root: Path) -> list[Path]:
    """The sessions in a journal root, oldest first."""
    if not root.is_dir():
        return []
    return sorted(
        path for path in root.iterdir() if path.name not in OUTLIVE and path.is_dir() and not path.is_symlink()
    )


def is_session(folder: Path) -> bool:
    """Whether this is the folder of one training process."""
    return bool(recording_folders(folder)) or any((folder / name).exists() for name in (STATUS, RELEASED))


def journal_roots_below(directory: Path) -> list[Path]:
    """The journal roots in a folder: itself, or those of many trainings anywhere below it; links are not followed."""
    roots = []
    for path, folders, _ in os.walk(directory):
        here = Path(path)
        if here.name == JOURNAL_FOLDER or any(is_session(here / each) for each in folders):
            roots.append(here)
            folders.clear()
        folders.sort()
    return roots
