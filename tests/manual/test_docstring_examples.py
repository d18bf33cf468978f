"""The examples of docstrings and manual pages: those after ``>>>`` print what they say, and calls in a sentence fit."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from architecture.repository import PACKAGE, ROOT, python_files
from manual.pages_and_blocks import PAGES, prepared

import mlflow_stability
from mlflow_stability import kinds
from mlflow_stability.cli.main import run
from mlflow_stability.kinds.catalog import DETECTORS, ON_REQUEST, documentation, name_of
from mlflow_stability.session.probe_plan import chosen_detectors
from mlflow_stability.vocabulary.settings import Options, Settings

CODE = re.compile(r"`{1,2}([^`]+)`{1,2}")
BLOCKS = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def docstrings(path: Path) -> Iterator[str]:
    """Every docstring of a file, and those of its constants and fields."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def called_names() -> dict[str, Any]:
    """What a user calls: public functions, and the classes of detectors."""
    detectors = {name: getattr(kinds, name) for name in kinds.__all__}
    return {name: getattr(mlflow_stability, name) for name in mlflow_stability.PUBLIC} | detectors


def snippets() -> Iterator[tuple[str, ast.Call]]:
    """Calls of public names in the sentences of docstrings and pages."""
    texts = [(path, text) for path in python_files(PACKAGE) for text in docstrings(path)]
    texts += [(page, BLOCKS.sub("", page.read_text(encoding="utf-8"))) for page in PAGES]
    names = called_names()
    for path, text in texts:
        for code in CODE.findall(text):
            try:
                call = ast.parse(" ".join(code.split()), mode="eval").body
            except SyntaxError:
                continue
            if isinstance(call, ast.Call) and _name(call) in names and (call.args or call.keywords):
                yield f"{path.relative_to(ROOT)}: {ast.unparse(call)}", call


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).removeprefix("mlflow_stability.")


PROMPT = re.compile(r"^ *>>> ", re.MULTILINE)
EXAMPLES = [path for path in python_files(PACKAGE) if PROMPT.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_examples_of_a_file_print_what_they_say(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prepared(tmp_path))
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    of_module = vars(import_module(name))
    ran = 0
    for text in docstrings(path):
        if ">>>" in text:
            example = doctest.DocTestParser().get_doctest(text, dict(of_module), name, str(path), 0)
            printed: list[str] = []
            result = doctest.DocTestRunner(verbose=False).run(example, out=printed.append)
            assert result.failed == 0, "".join(printed)
            ran += result.attempted
    assert ran


def test_the_functions_that_take_detectors_have_an_example_or_a_page_with_one() -> None:
    with_example = {path.relative_to(PACKAGE).as_posix() for path in EXAMPLES}
    assert {"analysis/diagnose.py", "kinds/__init__.py"} <= with_example


@pytest.mark.slow
def test_a_call_in_a_sentence_has_arguments_that_there_are() -> None:
    calls = dict(snippets())
    assert len(calls) > 100
    for snippet, call in calls.items():
        _check_arguments(snippet, call)


def _check_arguments(snippet: str, call: ast.Call) -> None:
    called = called_names()[_name(call)]
    names = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    signature = inspect.signature(called)
    taken = set(signature.parameters)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        taken |= set(inspect.signature(mlflow_stability.autolog).parameters)
    assert set(names) <= taken, snippet
    if ... in [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]:
        return
    if _name(call) in kinds.__all__ or _name(call) in ("RollbackPolicy", "Options"):
        eval(compile(ast.Expression(call), snippet, "eval"), called_names())
    elif _name(call) == "autolog" and "disable" not in names:
        given = {keyword.arg or "": _evaluated(keyword.value) for keyword in call.keywords}
        options = given.pop("options", Options()).given
        chosen_detectors(Settings(**given, **options))


def _evaluated(value: ast.expr) -> Any:
    return eval(compile(ast.Expression(value), "<example>", "eval"), called_names())


def test_kinds_lists_every_detector_for_type_checkers() -> None:
    assert kinds.__all__ == sorted(kinds.__all__)
    assert {getattr(kinds, name) for name in kinds.__all__} == {*DETECTORS, *ON_REQUEST}
    body = ast.parse(Path(kinds.__file__).read_text(encoding="utf-8")).body
    written = {alias.name for node in body for alias in getattr(node, "names", [])}
    assert set(kinds.__all__) <= written


@pytest.mark.parametrize("detector", [*DETECTORS, *ON_REQUEST], ids=name_of)
def test_a_finding_says_where_its_detector_is_imported_from(
    detector: type, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    about = documentation(name_of(detector))
    run(["explain", about.name])
    text = " ".join(capsys.readouterr().out.split())
    if not about.thresholds:
        assert "from mlflow_stability.kinds" not in text
        return
    assert f"from mlflow_stability.kinds import {detector.__name__}" in text
    (call,) = re.findall(rf"autolog\(detectors=\[({detector.__name__}\(.*?\))\]\)", text)
    assert _evaluated(ast.parse(call, mode="eval").body) == detector()
