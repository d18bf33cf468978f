"""Where things are in a journal directory.

.mlflow-stability/                      the journal root, mode 0700
  20261121-034500-4711-3f9a/            one training process
    courier                             a link whose target says who delivers it: pid and start time
    courier.log                         what the courier had to say
    released                            watching was taken off, though the process may live on
    status.json                         how far it is
    000-8c1f…/                          one recording: what this process did for one run
      journal  last_words.json          written by the training
      delivered.json                    written by the courier: what has arrived
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from mlflow_stability.journal.writer import NAME as JOURNAL

COURIER = "courier"
COURIER_LOG = "courier.log"
RELEASED = "released"
STATUS = "status.json"
DELIVERED = "delivered.json"


def new_session_folder(root: Path) -> Path:
    """A folder for this training process; the root is made private where it is ours to make."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(2)}"
    folder.mkdir(mode=0o700)
    return folder


def recording_folders(session: Path) -> list[Path]:
    """The recordings of a session that are still there, in the order in which they began."""
    return sorted(path.parent for path in session.glob(f"*/{JOURNAL}"))


def session_folders(root: Path) -> list[Path]:
    """The sessions in a journal root, oldest first."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
