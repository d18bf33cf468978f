"""Numbers in the code of rules that are no field of a detector, each with the text below it.

Lists constants that are numbers, and the fields of classes `...Limits` and `Lookback`. Files are read, not run: some of
them load torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow_stability.kinds.documentation import Threshold

FOLDERS = ("curves", "detectors", "diagnosis", "kinds", "recovery")
CONFIGS = ("Limits", "Lookback")  # ends of the names of classes whose fields are such numbers
_PACKAGE = Path(__file__).parents[1]
_OPERATORS = {
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
    ast.LShift: lambda a, b: a << b,
}


def rule_constants() -> Iterator[tuple[str, list[Threshold]]]:
    """Yield each file that has any, and its constants."""
    for folder in FOLDERS:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            constants = list(_constants(ast.parse(path.read_text(encoding="utf-8")).body))
            if constants:
                yield path.relative_to(_PACKAGE).as_posix(), constants


def _constants(body: list[ast.stmt]) -> Iterator[Threshold]:
    for place, statement in enumerate(body):
        if isinstance(statement, ast.ClassDef) and statement.name.endswith(CONFIGS):
            yield from _fields(statement.body)
        if not isinstance(statement, ast.Assign):
            continue
        names = [target.id for target in _parts(statement.targets[0]) if isinstance(target, ast.Name)]
        values = [_number(value) for value in _parts(statement.value)]
        if len(names) != len(values) or not all(name.isupper() and name[0] != "_" for name in names):
            continue
        meaning = _meaning(body[place + 1 :])
        for name, value in zip(names, values, strict=True):
            if value is not None:
                yield Threshold(name, value, meaning)


def _fields(body: list[ast.stmt]) -> Iterator[Threshold]:
    for place, statement in enumerate(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            value = _number(statement.value)
            if value is not None:
                yield Threshold(statement.target.id, value, _meaning(body[place + 1 :]))


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _meaning(following: list[ast.stmt]) -> str:
    """Return the text below a constant; constants in a row share the text below the last of them."""
    for node in following:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return " ".join(node.value.value.split())
        if not isinstance(node, ast.Assign):
            return ""
    return ""


def _number(node: ast.expr) -> float | None:
    """Return the value of a number, or of a product, quotient or power of numbers."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(node.left), _number(node.right)
        compute: Any = _OPERATORS[type(node.op)]
        return None if left is None or right is None else float(compute(left, right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    return None
