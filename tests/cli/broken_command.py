"""A command with a mistake in it."""

from __future__ import annotations

import click


@click.command("broken")
def command() -> None:
    """Fail with an error that the command line does not expect."""
    raise KeyError("loss\x1b[2J")
