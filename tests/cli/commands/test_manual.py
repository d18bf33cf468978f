from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console
from rich.markdown import Markdown

from mlflow_stability.cli.commands.manual import all_pages
from mlflow_stability.cli.main import run
from mlflow_stability.manual.pages import Page


def test_without_a_page_all_are_listed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["manual"]) == 0
    shown = capfdbinary.readouterr().out.decode()
    assert all(page.name in shown and page.title in shown for page in all_pages())


def test_in_a_pipe_a_page_is_plain_markdown(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["manual", "Getting-Started"]) == 0
    assert capfdbinary.readouterr().out.decode().startswith("# Getting started\n")


def test_a_page_that_is_not_there_is_refused_with_the_nearest(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["manual", "recovry"]) == 2
    text = capfdbinary.readouterr().err.decode()
    assert "No such page: 'recovry'" in text
    assert "recovery" in text


@pytest.mark.slow
@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)
def test_every_page_can_be_drawn_on_a_narrow_terminal(page: Page) -> None:
    file = io.StringIO()
    Console(width=80, file=file).print(Markdown(page.text()))
    assert all(len(line) <= 80 for line in file.getvalue().splitlines())


@pytest.mark.slow
def test_a_page_is_shown_without_torch_and_mlflow() -> None:
    code = "import sys; from mlflow_stability.cli.main import run; run(['manual', 'python_api']); "
    code += "print(sorted({'torch', 'mlflow'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
