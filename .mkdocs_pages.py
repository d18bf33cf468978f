"""Gives MkDocs the pages of the manual that are made from the code, and the order of all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from mlflow_stability import PUBLIC
from mlflow_stability.cli.commands.manual import all_pages

ROOT = Path(__file__).parent
STYLE = "assets/manual.css"
"""Names are never broken in the middle: on a narrow screen tables scroll instead."""


def on_config(config: Any) -> Any:
    """The order of the pages, and their style."""
    config.extra_css = [STYLE]
    config.nav = [{"mlflow-stability": "index.md"}] + [{page.title: f"{page.name}.md"} for page in all_pages()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """The pages that no file holds."""
    files.append(File.generated(config, "index.md", content=_home()))
    files.append(File.generated(config, STYLE, content=".md-typeset td code {word-break: normal}\n"))
    for page in all_pages():
        if page.name == "python_api":
            files.append(File.generated(config, "python_api.md", content=_public_names()))
        elif page.make:
            written = files.get_file_from_path(f"{page.name}.md")
            if written is not None:
                files.remove(written)
            files.append(File.generated(config, f"{page.name}.md", content=page.text()))
    return files


def on_page_markdown(markdown: str, **_context: Any) -> str:
    """The text of a page, with a link where it names another page by its command.

    Pages that no file holds are named like that: in a checkout a link to them would lead nowhere.
    """
    there = {each.name for each in all_pages()}

    def linked(match: re.Match[str]) -> str:
        return f"[{match[0]}]({match[1]}.md)" if match[1] in there else match[0]

    return re.sub(r"(?<!\[)`mlflow-stability manual (\w+)`", linked, markdown)


def _home() -> str:
    """The README, with the addresses that its pages have here."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = text.replace("(mlflow_stability/README.md)", "(design.md)").replace("[LICENSE](LICENSE)", "`LICENSE`")
    return re.sub(r"\]\(mlflow_stability/manual/", "](", text)


def _public_names() -> str:
    """For the site, mkdocstrings reads the same sources that `mlflow-stability manual python_api` reads."""
    found = [f"::: {home}.{name}" for name, home in sorted(PUBLIC.items(), key=lambda each: each[0].lower())]
    return "\n\n".join(["# Python API", "Everything here is imported from `mlflow_stability`.", *found]) + "\n"
