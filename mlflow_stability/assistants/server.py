"""The MCP server: the tools of `RunTools`, and the pages of the manual as resources.

Guarantees: every tool is marked as read-only; an error about a run is answered in one sentence, and nothing but the
protocol goes to stdout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

import mlflow_stability
from mlflow_stability.assistants.run_tools import RunTools
from mlflow_stability.errors import StabilityError
from mlflow_stability.manual.pages import Page

INSTRUCTIONS = (
    "Diagnoses PyTorch training runs in MLflow, and training logs: what went wrong, when, why, what to change. "
    "Call diagnose_run first; list_findings, load_series and explain look closer; compare_runs is for several runs. "
    "Pages of the manual are resources: manual://diagnosis says how to read a diagnosis. Everything is read-only."
)


def server_of(tools: RunTools, pages: Iterable[Page]) -> MCPServer[Any]:
    """Return the server, ready to run over stdin and stdout."""
    server: MCPServer[Any] = MCPServer(
        "mlflow-stability",
        instructions=INSTRUCTIONS,
        version=mlflow_stability.__version__,
        log_level="WARNING",
    )
    for tool in (
        tools.diagnose_run,
        tools.compare_runs,
        tools.list_findings,
        tools.explain,
        tools.load_series,
        tools.run_checklist,
    ):
        server.add_tool(
            _with_tool_errors(tool), annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False)
        )
    for page in pages:
        server.resource(
            f"manual://{page.name}", name=page.name, title=page.title, description=f"Manual: {page.title}",
            mime_type="text/markdown",
        )(page.text)  # fmt: skip
    return server


def _with_tool_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors of this package into answers that an assistant can act on."""

    @functools.wraps(tool)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return tool(*args, **kwargs)
        except StabilityError as error:
            raise ToolError(str(error)) from None

    return wrapper
