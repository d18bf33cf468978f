"""A group of commands whose files are loaded when one of them is asked for.

Listing the commands, or completing their names in a shell, loads none: what each does stands here in one sentence, and
a test holds it against the command's own.

Says what was probably meant by an option that there is not.

In: click's error. Out: the same, with the option that does what was asked for. Guarantees: only options that the
command has are named; where none fits, click's own guess stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import click
from click.shell_completion import CompletionItem

from mlflow_stability.vocabulary.argument import did_you_mean, or_list


class CommandsOnDemand(click.Group):
    """Commands by name: `sync` is the object `command` in the module beside it."""

    summaries: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """For each command, the module that holds it and what it does."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Their names, in the order of the table."""
        return list(self.summaries)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Load one."""
        if name not in self.summaries:
            return None
        command = import_module(self.summaries[name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was typed; of one that there is not, the one that was probably meant."""
        name = arguments[0]
        if not name.startswith("-") and name not in self.summaries:
            near = did_you_mean(name, self.summaries) or f" There are {or_list(self.summaries, last='and')}."
            raise click.UsageError(f"No such command {name!r}.{near}", context)
        return super().resolve_command(context, arguments)

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """The list that `--help` shows."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.summaries.items()])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names that a shell may offer."""
        names = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in self.summaries.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, context, incomplete)


FORM, FILE = "--output-format", "--output"
ENDINGS = {"markdown": "md"}
"""Of those forms whose files do not end in their name."""
OTHER_WORDS = {"md": "markdown", "text": "rich", "format": "", "out": "", "file": "", "o": "", "f": ""}
"""What people also type; empty: something about the output, of no certain form."""


def with_a_hint(error: click.ClickException) -> click.ClickException:
    """The error as it is shown."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    detectors = _detectors_for(error.option_name) if "--detectors" in _names(error.ctx.command) else ""
    if detectors:
        hint = f"Write --detectors default --detectors {detectors}."
        return click.UsageError(f"No such option '{error.option_name}'. {hint}", error.ctx)
    forms = next((_choices(each) for each in error.ctx.command.params if FORM in each.opts), ())
    typed = error.option_name.lstrip("-").lower()
    form = OTHER_WORDS.get(typed, typed)
    if not forms or (form and form not in forms):
        return error
    if not form:
        hint = f"{FORM} takes {', '.join(forms)}; {FILE} FILE writes to a file, in the format of its extension."
    elif form == "rich":
        hint = f"Write {FORM} rich, which is how it looks without it."
    else:
        hint = f"Write {FORM} {form}, or {FILE} FILE.{ENDINGS.get(form, form)}."
    return click.UsageError(f"No such option '{error.option_name}'. {hint}", error.ctx)


def _detectors_for(option: str) -> str:
    """The detector whose thresholds or rule an option of before stood for."""
    from mlflow_stability.vocabulary.settings import THRESHOLDS

    name = option.lstrip("-").replace("-", "_")
    return "loss_spike:classic" if name == "rule" else f"'{THRESHOLDS[name].format('Z')}'" if name in THRESHOLDS else ""


def _names(command: click.Command) -> set[str]:
    return {name for option in command.params for name in option.opts}


def _choices(option: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, option.type.choices)) if isinstance(option.type, click.Choice) else ()
