"""`mlflow-stability`: the one place where a command becomes an exit code.

0: nothing is wrong. 1: something was found. 2: it could not be done, and one sentence on stderr says what to do. 130:
stopped by Ctrl-C. The result alone goes to stdout.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import ClassVar, NoReturn

import click

import mlflow_stability
from mlflow_stability.cli.kit.on_demand import CommandsOnDemand, with_a_hint
from mlflow_stability.errors import StabilityError
from mlflow_stability.reports.escape import plain, plain_lines

COULD_NOT = 2
COLLECT_AFTER = 50_000
"""From so many new objects on garbage is looked for while a command works: what it loads are some hundred thousand that
all stay, and to look through them as often as Python does took a sixth of the seconds of `diagnose`."""
INTERRUPTED = 130
TRACEBACK = "MLFLOW_STABILITY_TRACEBACK"
"""The environment variable that shows where something unexpected happened."""


class Commands(CommandsOnDemand):
    """Every command there is."""

    summaries: ClassVar[Mapping[str, tuple[str, str]]] = {
        "run": ("mlflow_stability.cli.commands.run", "Run a training script with autolog(), without changing it."),
        "watch": (
            "mlflow_stability.cli.commands.watch",
            "Watch a run while it trains: curves, findings, rollbacks, time left.",
        ),
        "open": ("mlflow_stability.cli.commands.open", "Open the report of a run in the browser."),
        "diagnose": (
            "mlflow_stability.cli.commands.diagnose",
            "Diagnose runs and logs: what went wrong, the likely cause, what to change.",
        ),
        "compare": (
            "mlflow_stability.cli.commands.compare",
            "Compare runs: which are unstable, since which step, what they have in common.",
        ),
        "explain": (
            "mlflow_stability.cli.commands.explain",
            "Explain a finding or a cause: what it means, what to do, when it is wrong.",
        ),
        "thresholds": (
            "mlflow_stability.cli.commands.thresholds",
            "Print every threshold with its default and its meaning.",
        ),
        "presets": ("mlflow_stability.cli.commands.presets", "Print what each preset sets, beside the defaults."),
        "checklist": (
            "mlflow_stability.cli.commands.checklist",
            "List what to check, with what a run shows for each item, and what to decide.",
        ),
        "import": ("mlflow_stability.cli.commands.import_logs", "Turn logs of other tools into MLflow runs."),
        "check": (
            "mlflow_stability.cli.commands.check",
            "Check a model as it is now: values, settings, gradients of one batch.",
        ),
        "checkpoints": (
            "mlflow_stability.cli.commands.checkpoints",
            "List, verify and download the checkpoints of a run.",
        ),
        "demo": (
            "mlflow_stability.cli.commands.demo",
            "Train a tiny GPT that breaks, with and without the autopilot.",
        ),
        "simulate": (
            "mlflow_stability.cli.commands.simulate",
            "Train a failure beside its healthy twin, and diagnose it.",
        ),
        "doctor": (
            "mlflow_stability.cli.commands.doctor",
            "Check the installation, the tracking store and the journals.",
        ),
        "manual": ("mlflow_stability.cli.commands.manual", "Show a page of the manual; needs no network."),
        "mcp": ("mlflow_stability.cli.commands.mcp", "Answer an assistant's questions about runs, over MCP."),
        "sync": ("mlflow_stability.cli.commands.sync", "Send recorded data that has not reached the tracking server."),
    }


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(mlflow_stability.__version__, prog_name="mlflow-stability")
def commands() -> None:
    """Record and diagnose PyTorch training in MLflow."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Do what was typed; give the exit code."""
    usual = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *usual[1:])
    try:
        code = commands.main(arguments, prog_name="mlflow-stability", standalone_mode=False)
    except click.ClickException as error:
        with_a_hint(error).show()
        return COULD_NOT
    except StabilityError as error:
        click.echo(f"mlflow-stability: {plain_lines(str(error))}", err=True)
        return COULD_NOT
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # a mistake of ours: exit code 1 would say that something was found
        if os.environ.get(TRACEBACK, "") not in ("", "0"):
            traceback.print_exc()
        said = plain(f"{type(error).__name__}: {error}", 300)
        click.echo(f"mlflow-stability: unexpected {said}. Please report it, with what {TRACEBACK}=1 prints.", err=True)
        return COULD_NOT
    finally:
        gc.set_threshold(*usual)
    if callable(code):  # a script of the user's, which begins when nothing of the command line is left
        code = code()
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The entry point."""
    sys.exit(run())
