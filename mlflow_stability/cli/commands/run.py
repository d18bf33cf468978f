"""`run`: runs a training script with `autolog()`, without a line changed in it."""

from __future__ import annotations

from typing import Any

import click

from mlflow_stability.cli.kit.autolog_options import CommandWithSections, autolog_options, settings_typed
from mlflow_stability.cli.kit.script import Script


@click.command("run", cls=CommandWithSections, context_settings={"allow_interspersed_args": False})
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@autolog_options
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(is_module: bool, script: str, arguments: tuple[str, ...], **typed: Any) -> Script:
    """Run a training script with autolog(), without changing it.

    SCRIPT is a file, or with -m a module; what follows it are its own arguments. Options before it are those of
    autolog(), its Options and its RollbackPolicy. With torchrun: torchrun --no-python mlflow-stability run train.py.

    The exit code is that of the script. Processes that it starts by multiprocessing, such as those of
    torch.multiprocessing.spawn, are recorded too. In other processes that it starts, call autolog().
    """
    return Script(script, arguments, settings_typed(typed), is_module)
