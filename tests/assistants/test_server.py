from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from analysis.logs import diverging, falling
from analysis.stored_runs import store_run
from architecture.repository import ROOT
from architecture.test_loading import loaded_by
from mcp import Client, StdioServerParameters

from mlflow_stability.cli.main import run

TOOLS = {"diagnose_run", "compare_runs", "list_findings", "explain", "load_series", "run_checklist"}
QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("diagnose_run", {"run": "lost"}),
    ("list_findings", {"run": "lost", "limit": 1}),
    ("load_series", {"run": "lost", "metric": "train_loss", "max_points": 5}),
    ("run_checklist", {"run": "lost"}),
    ("compare_runs", {"last": 2}),
    ("explain", {"name": "divergence"}),
    ("diagnose_run", {"run": "lots"}),
    ("load_series", {"run": "lost", "metric": "accuracy"}),
)


async def session(uri: str, transcript: Path) -> dict[str, Any]:
    """What the official client is answered, kept as a transcript."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mlflow_stability", "mcp", "--tracking-uri", uri],
        env={**os.environ, "PYTHONPATH": path},
    )
    by_name: dict[str, Any] = {}
    lines = [f"$ mlflow-stability mcp --tracking-uri {uri}"]
    async with Client(server) as client:
        children = psutil.Process().children(recursive=True)
        (process,) = [child for child in children if "mcp" in child.cmdline()]
        by_name["connections"] = process.net_connections("inet")
        by_name["tools"] = (await client.list_tools()).tools
        by_name["resources"] = (await client.list_resources()).resources
        by_name["page"] = (await client.read_resource("manual://diagnosis")).contents[0].text
        for name, arguments in QUESTIONS:
            answer = await client.call_tool(name, arguments)
            text = "\n".join(message.text for message in answer.content)
            by_name.setdefault("answers", []).append((answer.is_error, text))
            lines += ["", f"-> {name} {json.dumps(arguments)}", f"<- {'ERROR ' if answer.is_error else ''}{text}"]
    transcript.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return by_name


@pytest.fixture
def answered(sqlite_uri: str, tmp_path: Path) -> dict[str, Any]:
    store_run(sqlite_uri, falling(), name="well", lr=0.01)
    store_run(sqlite_uri, diverging(), name="lost", lr=0.1)
    return asyncio.run(session(sqlite_uri, tmp_path / "transcript.txt"))


@pytest.mark.slow
def test_the_official_client_is_answered_over_stdio(answered: dict[str, Any], sqlite_uri: str) -> None:
    assert {entry.name for entry in answered["tools"]} == TOOLS
    assert answered["connections"] == []  # it listens to its own stdin alone
    for tool in answered["tools"]:
        assert tool.annotations.read_only_hint is True
        assert tool.description
    pages = {str(resource.uri) for resource in answered["resources"]}
    assert {"manual://diagnosis", "manual://command_line", "manual://findings"} <= pages
    assert answered["page"].startswith("# Reading a diagnosis")
    errors = [is_error for is_error, _ in answered["answers"]]
    assert errors == [False] * 6 + [True] * 2
    texts = [text for _, text in answered["answers"]]
    assert json.loads(texts[0])["outcome"] == "diverged"
    assert len(texts[0]) < 8_192
    assert json.loads(texts[1])["findings"][0]["issue_type"] == "divergence"
    assert len(json.loads(texts[2])["series"]) <= 5
    assert "2 runs: 1 lost, 1 stable." in texts[4]
    assert texts[5].startswith("## divergence")
    assert "Did you mean 'lost'?" in texts[6]
    assert "The run has no metric 'accuracy'" in texts[7]


def test_without_the_package_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert run(["mcp"]) == 2
    assert "pip install 'mlflow-stability[mcp]'" in capsys.readouterr().err


@pytest.mark.slow
def test_neither_torch_nor_mlflow_is_loaded_before_a_question_needs_it() -> None:
    assert not {"torch", "mlflow"} & loaded_by("import mlflow_stability.assistants.run_tools")
