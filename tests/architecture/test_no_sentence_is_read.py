"""Sentences are made for people: no code asks them for facts, except the reader of old events."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from architecture.repository import PACKAGE, nodes_of, python_files

READER = PACKAGE / "kinds" / "old_events.py"
"""The only module that may read sentences: those of recordings made before events had facts."""
SENTENCES = frozenset({"message", "statement", "sentence", "verdict"})
"""Attributes that hold sentences."""
TEXT_METHODS = frozenset(
    {
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "find",
        "index",
        "rindex",
        "rfind",
        "count",
        "partition",
        "rpartition",
        "replace",
        "split",
    }
)
PATTERN_METHODS = frozenset({"search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split"})
FOREIGN = ("importers",)
"""Rooms that read sentences of other people's programs."""
DISPLAYED = {
    ("courier/conclusion.py", "partition"): "shows the first sentence in bold",
    ("vocabulary/result/action.py", "removesuffix"): "adds numbers before the full stop",
    ("reports/comparison_sections.py", "compare"): "shows a cause once, where the verdict repeats it as it is",
    ("reports/run_phrases.py", "removeprefix"): "takes the outcome off the verdict, which stands beside it",
}
"""Where a part of a sentence is left out because it is shown elsewhere, and why."""


def reads_of_sentences(nodes: Iterable[ast.AST]) -> list[tuple[int, str]]:
    """Line and method of each place at which a sentence is asked for something."""
    result = []
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            compared = [type(operator) for operator in node.ops]
            if any(map(_is_sentence, sides)) and {ast.In, ast.NotIn, ast.Eq, ast.NotEq} & set(compared):
                result.append((node.lineno, "compare"))
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method = node.func.attr
        if method in TEXT_METHODS and _is_sentence(node.func.value):
            result.append((node.lineno, method))
        if method in PATTERN_METHODS and any(map(_is_sentence, node.args)):
            result.append((node.lineno, method))
    return result


def _is_sentence(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def unexpected(path: Path) -> list[str]:
    name = path.relative_to(PACKAGE).as_posix()
    return [
        f"{name}:{line} {method}"
        for line, method in reads_of_sentences(nodes_of(path))
        if (name, method) not in DISPLAYED
    ]


def test_no_module_asks_a_sentence_for_facts() -> None:
    files = [
        path for path in python_files(PACKAGE) if path != READER and path.relative_to(PACKAGE).parts[0] not in FOREIGN
    ]
    assert [read for path in files for read in unexpected(path)] == []


def test_such_reads_are_seen() -> None:
    code = """
if re.match("No rollback", episode.message): pass
if episode.message.startswith("No rollback"): pass
if "stop_on" in episode.message: pass
if one.message != other.message: pass
known = LAST_FINITE.search(inf.message)
shown = f"{episode.message} The loss did not rise."
"""
    assert sorted(line for line, _ in reads_of_sentences(ast.walk(ast.parse(code)))) == [2, 3, 4, 5, 6]


def test_exceptions_are_used() -> None:
    for name, method in DISPLAYED:
        assert method in {read for _, read in reads_of_sentences(nodes_of(PACKAGE / name))}, name
