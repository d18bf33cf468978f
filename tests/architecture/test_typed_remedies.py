"""Remedies are chosen by their actions: nothing reads their sentences."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from architecture.repository import PACKAGE

CHOOSING = (
    *(PACKAGE / "diagnosis" / "advice").glob("*.py"),
    *(PACKAGE / "diagnosis" / "causes").glob("*.py"),
    *(PACKAGE / "diagnosis" / "checklist" / f"{name}.py" for name in ("checklist", "orders")),
    *(PACKAGE / "vocabulary" / "result" / f"{name}.py" for name in ("action", "topic", "remedy")),
)


@pytest.mark.parametrize("file", CHOOSING, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_what_chooses_remedies_uses_no_regular_expression(file: Path) -> None:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    assert "re" not in imported


def test_no_conclusion_is_drawn_from_the_sentence_of_a_remedy() -> None:
    for file in (PACKAGE / "diagnosis").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not [part for part in ("str(remedy", "remedy.sentence", "map(str, remedies") if part in text], file
