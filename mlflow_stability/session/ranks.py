"""Which of several processes that train together records."""

from __future__ import annotations

import os

import torch


def rank_and_world_size() -> tuple[int, int]:
    """This process's place in the training; (0, 1) where it trains alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    # A launcher has started several, and the script brings them together by other means than torch.distributed.
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
