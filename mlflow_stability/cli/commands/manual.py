"""`manual`: shows the manual in the terminal, a page at a time, without a network."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem
from rich.markdown import Markdown

from mlflow_stability.cli.kit.output import present, put_out
from mlflow_stability.cli.kit.terminal import result_console
from mlflow_stability.manual.pages import PAGES, Page
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.argument import did_you_mean


def command_line_page() -> str:
    """Every command with its options, as `--help` prints them."""
    from mlflow_stability.cli.main import Commands, commands

    lines = ["# Command line", ""]
    lines += ["The result goes to stdout, everything else to stderr; progress is shown on a terminal only.", ""]
    lines += ["| exit code | meaning |", "| --- | --- |"]
    lines += ["| 0 | no warnings |", "| 1 | something was found, or something needs attention |"]
    lines += ["| 2 | could not be done; one sentence on stderr says what to do |", "| 130 | stopped by Ctrl-C |"]
    for name in Commands.summaries:
        context = click.Context(commands, info_name="mlflow-stability", max_content_width=80, terminal_width=80)
        command = commands.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, max_content_width=80, terminal_width=80)
        lines += ["", f"## {name}", "", "```text", command.get_help(inner).rstrip(), "```"]
    lines += ["", "## Shell completion", "", "```bash"]
    lines += ['eval "$(_MLFLOW_STABILITY_COMPLETE=bash_source mlflow-stability)"   # or zsh_source, fish_source']
    return "\n".join([*lines, "```"]) + "\n"


def all_pages() -> tuple[Page, ...]:
    """Every page, with that of the command line behind the options."""
    at = next(index for index, page in enumerate(PAGES) if page.name == "options")
    return (*PAGES[:at], Page("command_line", "Command line", command_line_page), *PAGES[at:])


def _checked(_context: click.Context, _argument: click.Parameter, typed: str | None) -> Page | None:
    if typed is None:
        return None
    name = typed.strip().lower().removesuffix(".md").replace("-", "_").replace(" ", "_")
    names = {page.name: page for page in all_pages()}
    if name not in names:
        hint = did_you_mean(name, names) or f" There are: {', '.join(names)}."
        raise click.BadParameter(f"No such page: {typed!r}.{hint}")
    return names[name]


def _complete(_context: click.Context, _argument: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(page.name, help=page.title) for page in all_pages() if page.name.startswith(begun)]


@click.command("manual")
@click.argument("page", required=False, callback=_checked, shell_complete=_complete)
def command(page: Page | None) -> None:
    """Show a page of the manual; needs no network.

    PAGE is the name of a page; without it, all pages are listed. In a pipe a page is plain Markdown.
    """
    if page is None:
        present(_contents)
        return
    console = result_console()
    if not console.is_terminal:
        put_out(page.text())
        return
    console.print(Markdown(page.text()))


def _contents(out: TerminalWriter) -> None:
    out.section("Manual", ((out.text(page.name, "bold"), out.text(page.title)) for page in all_pages()), space=False)
    out.paragraph("More", "`mlflow-stability manual PAGE` shows one.")
