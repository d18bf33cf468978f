"""`mlflow-stability`: the commands, and how each becomes an exit code.

0: nothing is wrong. 1: something was found. 2: it could not be done, with a remedy on stderr. 130:
stopped by Ctrl-C. The result alone goes to stdout. Listing the commands, or completing their names in a shell, loads
none of their files.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import ClassVar, NoReturn

import click
from click.shell_completion import CompletionItem

import mlflow_stability
from mlflow_stability.errors import StabilityError
from mlflow_stability.reports.escape import plain, plain_lines
from mlflow_stability.vocabulary.argument import did_you_mean, or_list

FOUND, COULD_NOT, INTERRUPTED = 1, 2, 130
GC_THRESHOLD = 50_000
"""New objects between two garbage collections: a command loads some hundred thousand that all stay, and the default
took a sixth of the time of `diagnose`."""
TRACEBACK = "MLFLOW_STABILITY_TRACEBACK"
FORM, FILE = "--output-format", "--output"
_ENDINGS = {"markdown": "md"}  # formats whose files do not end in their name
_FORM_SYNONYMS = {"md": "markdown", "text": "rich", "format": "", "out": "", "file": "", "o": "", "f": ""}
"""What people also type; empty: something about the output, of no certain format."""


class Commands(click.Group):
    summaries: ClassVar[Mapping[str, tuple[str, str]]] = {
        "run": (".commands.run", "Run a training script with autolog(), without changing it."),
        "watch": (".watch", "Watch a run while it trains: curves, findings, rollbacks, time left."),
        "open": (".commands.open", "Open the report of a run in the browser."),
        "diagnose": (
            ".commands.diagnose",
            "Diagnose runs and logs: what went wrong, the likely cause, what to change.",
        ),
        "compare": (
            ".commands.compare",
            "Compare runs: which are unstable, since which step, what they have in common.",
        ),
        "explain": (".commands.explain", "Explain a finding or a cause: what it means, what to do, when it is wrong."),
        "thresholds": (".commands.explain:thresholds", "Print every threshold with its default and its meaning."),
        "presets": (".commands.explain:presets", "Print what each preset sets, beside the defaults."),
        "checklist": (
            ".commands.checklist",
            "List what to check, with what a run shows for each item, and what to decide.",
        ),
        "import": (".commands.import_logs", "Turn logs of other tools into MLflow runs."),
        "check": (".commands.check", "Check a model as it is now: values, settings, gradients of one batch."),
        "checkpoints": (".commands.checkpoints", "List, verify and download the checkpoints of a run."),
        "demo": (".commands.demo", "Train a tiny GPT that breaks, with and without the autopilot."),
        "simulate": (".commands.demo:simulate", "Train a failure beside its healthy twin, and diagnose it."),
        "doctor": (".commands.doctor", "Check the installation, the tracking store and the journals."),
        "manual": (".commands.manual", "Show a page of the manual; needs no network."),
        "mcp": (".commands.manual:mcp", "Answer an assistant's questions about runs, over MCP."),
        "sync": (".commands.sync", "Send recorded data that has not reached the tracking server."),
    }
    """Module and object of each command, which is `command` by default, and its summary."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self.summaries)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in self.summaries:
            return None
        module, _, attribute = self.summaries[name][0].partition(":")
        command = getattr(import_module(module, __package__), attribute or "command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed; for an unknown one raise an error that names the nearest."""
        name = arguments[0]
        if not name.startswith("-") and name not in self.summaries:
            hint = did_you_mean(name, self.summaries) or f" There are {or_list(self.summaries, last='and')}."
            raise click.UsageError(f"No such command {name!r}.{hint}", context)
        return super().resolve_command(context, arguments)

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.summaries.items()])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in self.summaries.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, context, incomplete)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(mlflow_stability.__version__, prog_name="mlflow-stability")
def commands() -> None:
    """Record and diagnose PyTorch training in MLflow."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run what was typed; return the exit code."""
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, *thresholds[1:])
    try:
        code = commands.main(arguments, prog_name="mlflow-stability", standalone_mode=False)
    except click.ClickException as error:
        _with_option_hint(error).show()
        return COULD_NOT
    except StabilityError as error:
        click.echo(f"mlflow-stability: {plain_lines(str(error))}", err=True)
        return COULD_NOT
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # a bug of ours: exit code 1 would mean a finding
        if os.environ.get(TRACEBACK, "") not in ("", "0"):
            traceback.print_exc()
        text = plain(f"{type(error).__name__}: {error}", 300)
        click.echo(f"mlflow-stability: unexpected {text}. Please report it, with what {TRACEBACK}=1 prints.", err=True)
        return COULD_NOT
    finally:
        gc.set_threshold(*thresholds)
    if callable(code):  # a script of the user's, which runs without any frame of click
        code = code()
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    sys.exit(run())


def _with_option_hint(error: click.ClickException) -> click.ClickException:
    """Add to an unknown option the one of the command that does it, if there is one."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    options = error.ctx.command.params
    hint = _detectors_hint(error.option_name, options) or _output_hint(error.option_name, options)
    return click.UsageError(f"No such option '{error.option_name}'. {hint}", error.ctx) if hint else error


def _detectors_hint(typed: str, options: Sequence[click.Parameter]) -> str:
    """Return how to set a threshold or a rule that was an option before."""
    from mlflow_stability.vocabulary.settings import THRESHOLDS

    name = typed.lstrip("-").replace("-", "_")
    if not any("--detectors" in option.opts for option in options) or name not in ("rule", *THRESHOLDS):
        return ""
    detectors = "loss_spike:classic" if name == "rule" else f"'{THRESHOLDS[name].format('Z')}'"
    return f"Write --detectors default --detectors {detectors}."


def _output_hint(typed: str, options: Sequence[click.Parameter]) -> str:
    """Return how to choose the output format that an unknown option is about."""
    types = [option.type for option in options if FORM in option.opts]
    forms = [str(choice) for kind in types if isinstance(kind, click.Choice) for choice in kind.choices]
    name = typed.lstrip("-").lower()
    form = _FORM_SYNONYMS.get(name, name)
    if not forms or (form and form not in forms):
        return ""
    if not form:
        return f"{FORM} takes {', '.join(forms)}; {FILE} FILE writes to a file, in the format of its extension."
    if form == "rich":
        return f"Write {FORM} rich, which is how it looks without it."
    return f"Write {FORM} {form}, or {FILE} FILE.{_ENDINGS.get(form, form)}."
