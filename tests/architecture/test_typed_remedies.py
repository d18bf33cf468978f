"""Remedies are chosen by their actions: nothing reads their sentences."""

from __future__ import annotations

import ast

from architecture.repository import PACKAGE, nodes_of, python_files

CHOOSING = (
    PACKAGE / "diagnosis" / "advice.py",
    *(PACKAGE / "diagnosis" / "causes").glob("*.py"),
    PACKAGE / "diagnosis" / "checklist" / "checklist.py",
    *(PACKAGE / "vocabulary" / "result" / f"{name}.py" for name in ("action", "topic", "remedy")),
)


def test_what_chooses_remedies_uses_no_regular_expression() -> None:
    for file in CHOOSING:
        imported = {name.name for node in nodes_of(file) if isinstance(node, ast.Import) for name in node.names}
        assert "re" not in imported, file


def test_no_conclusion_is_drawn_from_the_sentence_of_a_remedy() -> None:
    for file in python_files(PACKAGE / "diagnosis"):
        text = file.read_text(encoding="utf-8")
        assert not [part for part in ("str(remedy", "remedy.sentence", "map(str, remedies") if part in text], file
