"""All rows of the table, in its order."""

from __future__ import annotations

from gpu import attention, protection, steps

CHECKS = (*steps.CHECKS, *protection.CHECKS, *attention.CHECKS)
