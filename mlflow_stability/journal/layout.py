"""Paths in a journal directory, and what its small files hold.

.mlflow-stability/                      the journal root, mode 0700
  .gitignore                            keeps all of it out of git, where the root is ours
  checkpoints/ batches/                 what outlives the runs
  20261121-034500-4711-3f9a/            one training process
    training                            a link whose target identifies the process
    courier                             a link whose target identifies the process that delivers it
    courier.log                         log of the courier
    released                            recording was stopped, though the process may live on
    ranks.json                          which processes train together
    flush                               the number of the last request to deliver all records
    status.json                         progress of the delivery
    000-8c1f…/                          one recording: what this process recorded for one run
      journal  last_words.json          written by the training
      delivered.json                    written by the courier: what was delivered
      alerts.json                       written by the courier: which alerts were sent; without addresses
      mirror_TOOL.json                  written by the courier: what another tool has received
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.process_identity import ProcessIdentity, identity_from, own_identity
from mlflow_stability.vocabulary.settings import BATCHES_FOLDER, CHECKPOINTS_FOLDER, JOURNAL_FOLDER

_logger = logging.getLogger(__name__)
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
KEPT_FOLDERS = frozenset({CHECKPOINTS_FOLDER, BATCHES_FOLDER})  # folders of a root that are kept when a run is over


def mirror_page(recording: Path, tool: str) -> Path:
    """Return the file with the progress of a recording in another tool."""
    return recording / f"mirror_{tool}.json"


def new_session_folder(root: Path) -> Path:
    """Create the folder of this training process, with a link that identifies the process."""
    folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(2)}"
    make_root(root)
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:  # a courier that finished has just removed the empty root
        make_root(root)
        folder.mkdir(mode=0o700)
    with contextlib.suppress(OSError):  # without links the process stays unknown, and nothing is removed
        (folder / TRAINING).symlink_to(json.dumps(own_identity().as_json()))
    return folder


def make_root(root: Path) -> None:
    """Create the root of journals, private and ignored by git; a folder of the user's own is left as it is."""
    try:
        root.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if root.name != JOURNAL_FOLDER or (root / GITIGNORE).exists():
            return
    _keep_out_of_git(root)


def remove_empty_root(root: Path) -> None:
    """Remove a root that is empty but for its `.gitignore`."""
    try:
        if {path.name for path in root.iterdir()} <= {GITIGNORE}:
            (root / GITIGNORE).unlink(missing_ok=True)
            root.rmdir()
    except FileNotFoundError:
        return
    except OSError:  # another training has begun meanwhile
        _keep_out_of_git(root)


def _keep_out_of_git(root: Path) -> None:
    with contextlib.suppress(OSError):  # whatever needs the space next reports a full disk
        (root / GITIGNORE).touch(mode=0o600)  # private, like the root
        (root / GITIGNORE).write_text("*\n")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One process of a distributed training; the first one records."""

    name: str  # its rank and its host
    identity: ProcessIdentity


def write_ranks(session: Path, ranks: Sequence[RankProcess]) -> None:
    """Tell the courier which processes train together."""
    values = [{"name": rank.name, "process": rank.identity.as_json()} for rank in ranks]
    write_file(session / RANKS, json.dumps(values).encode())


def read_ranks(session: Path) -> list[RankProcess]:
    """Return the processes that train together; empty where there is only one, or they are not known yet."""
    try:
        values = json.loads((session / RANKS).read_bytes())
        identities = [(str(rank["name"]), identity_from(rank["process"])) for rank in values]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [RankProcess(name, identity or ProcessIdentity(0)) for name, identity in identities]


def read_page(file: Path) -> dict[str, Any]:
    """Return the values in a small file of JSON; empty if there is none or it cannot be read."""
    try:
        page = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return page if isinstance(page, dict) else {}


def write_file(file: Path, content: bytes) -> bool:
    """Write a private file that is there whole or not at all; False where the disk is full, or the folder is gone."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as opened:
            opened.write(content)
        draft.replace(file)
    except OSError as error:
        _logger.debug("Could not write %s: %s", file, error)
        draft.unlink(missing_ok=True)
        return False
    return True


def ask_to_flush(session: Path, number: int) -> bool:
    """Ask the courier to deliver all records; `number`: above the last one. False where the disk is full."""
    return write_file(session / FLUSH, str(number).encode())


def flush_asked(session: Path) -> int:
    """Return the number of the last such request; 0 where there was none."""
    try:
        return int((session / FLUSH).read_text())
    except (OSError, ValueError):
        return 0


def is_done(root: Path) -> bool:
    """Whether everything in a journal root was delivered, so that only `KEPT_FOLDERS` are left."""
    names = {path.name for path in root.iterdir()} if root.is_dir() else set()
    return bool(names) and names <= {GITIGNORE, *KEPT_FOLDERS}


def recording_folders(session: Path) -> list[Path]:
    """Return the recordings of a session that are not removed yet, in the order in which they began."""
    return sorted(path.parent for path in session.glob(f"*/{JOURNAL}"))


def session_folders(root: Path) -> list[Path]:
    """Return the sessions in a journal root, oldest first."""
    if not root.is_dir():
        return []
    return sorted(
        path for path in root.iterdir() if path.name not in KEPT_FOLDERS and path.is_dir() and not path.is_symlink()
    )


def is_session(folder: Path) -> bool:
    return bool(recording_folders(folder)) or any((folder / name).exists() for name in (STATUS, RELEASED))


def journal_roots_below(directory: Path) -> list[Path]:
    """Return the journal roots in a folder: itself, or any below it; links are not followed."""
    roots = []
    for path, folders, _ in os.walk(directory):
        here = Path(path)
        if here.name == JOURNAL_FOLDER or any(is_session(here / name) for name in folders):
            roots.append(here)
            folders.clear()
        folders.sort()
    return roots
