"""Small JSON files that another process reads while they are written anew.

Guarantees: a reader sees the old page or the new one, never half of one; a full disk leaves the old page and no litter.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

_logger = logging.getLogger(__name__)


def write_page(file: Path, said: dict[str, Any]) -> bool:
    """Put a page in place of the one before; False where there is no room for it."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as page:
            json.dump(said, page)
        draft.replace(file)
    except OSError as error:
        _logger.debug("Could not write %s: %s", file, error)
        draft.unlink(missing_ok=True)
        return False
    return True


def read_page(file: Path) -> dict[str, Any]:
    """What a page says; nothing where there is none or it cannot be read."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
