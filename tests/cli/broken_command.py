"""A command with a mistake in it."""

from __future__ import annotations

import click


@click.command("broken")
def command() -> None:
    """Fail in a way that nobody expected."""
    raise KeyError("loss\x1b[2J")
