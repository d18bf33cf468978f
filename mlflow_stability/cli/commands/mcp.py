"""`mcp`: lets an assistant ask about runs."""

from __future__ import annotations

from importlib.util import find_spec

import click

from mlflow_stability.cli.commands.manual import all_pages
from mlflow_stability.cli.kit.options import tracking_uri_option
from mlflow_stability.errors import StabilityError


@click.command("mcp")
@tracking_uri_option
def command(tracking_uri: str | None) -> None:
    """Answer an assistant's questions about runs, over MCP.

    A server of the Model Context Protocol over stdin and stdout, to be started by an assistant: tools to diagnose and
    compare runs, the pages of the manual as resources. It only reads. `mlflow-stability manual assistants` shows how to
    set it up.
    """
    if find_spec("mcp") is None:
        raise StabilityError("`mlflow-stability mcp` needs the package mcp: pip install 'mlflow-stability[mcp]'.")
    from mlflow_stability.assistants.run_tools import RunTools
    from mlflow_stability.assistants.server import server_of

    server_of(RunTools(tracking_uri), all_pages()).run("stdio")
