"""`manual`: pages of the manual in the terminal; `mcp`: the same pages and the runs for an assistant."""

from __future__ import annotations

from importlib.util import find_spec

import click
from click.shell_completion import CompletionItem
from rich.markdown import Markdown

from mlflow_stability.cli.options import tracking_uri_option
from mlflow_stability.cli.output import present, put_out, result_console
from mlflow_stability.errors import StabilityError
from mlflow_stability.manual.pages import PAGES, Page
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.argument import did_you_mean


def command_line_page() -> str:
    """Return every command with its options, as `--help` prints them."""
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
    """Return every page, that of the command line before the options."""
    at = next(index for index, page in enumerate(PAGES) if page.name == "options")
    return (*PAGES[:at], Page("command_line", "Command line", command_line_page), *PAGES[at:])


def _checked_page(_context: click.Context, _argument: click.Parameter, typed: str | None) -> Page | None:
    if typed is None:
        return None
    name = typed.strip().lower().removesuffix(".md").replace("-", "_").replace(" ", "_")
    pages = {page.name: page for page in all_pages()}
    if name not in pages:
        hint = did_you_mean(name, pages) or f" There are: {', '.join(pages)}."
        raise click.BadParameter(f"No such page: {typed!r}.{hint}")
    return pages[name]


def _complete_page(_context: click.Context, _argument: click.Parameter, prefix: str) -> list[CompletionItem]:
    return [CompletionItem(page.name, help=page.title) for page in all_pages() if page.name.startswith(prefix)]


@click.command("manual")
@click.argument("page", required=False, callback=_checked_page, shell_complete=_complete_page)
def command(page: Page | None) -> None:
    """Show a page of the manual; needs no network.

    PAGE is the name of a page; without it, all pages are listed. In a pipe a page is plain Markdown.
    """
    console = result_console()
    if page is None:
        present(_show_contents)
    elif console.is_terminal:
        console.print(Markdown(page.text()))
    else:
        put_out(page.text())


def _show_contents(out: TerminalWriter) -> None:
    out.section("Manual", ((out.text(page.name, "bold"), out.text(page.title)) for page in all_pages()), space=False)
    out.paragraph("More", "`mlflow-stability manual PAGE` shows one.")


@click.command("mcp")
@tracking_uri_option
def mcp(tracking_uri: str | None) -> None:
    """Answer an assistant's questions about runs, over MCP.

    A server of the Model Context Protocol over stdin and stdout, to be started by an assistant: tools to diagnose and
    compare runs, the pages of the manual as resources. It only reads. `mlflow-stability manual assistants` shows how to
    set it up.
    """
    if find_spec("mcp") is None:
        raise StabilityError("`mlflow-stability mcp` needs the package mcp: pip install 'mlflow-stability[mcp]'.")
    from mlflow_stability.assistants.run_tools import RunTools, server_of

    server_of(RunTools(tracking_uri), all_pages()).run("stdio")
