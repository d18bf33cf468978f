"""The numbers in the code of rules that no detector has as a field: each with what stands below it.

In: the source files of the folders below. Out: by file, the constants that are numbers, and the fields of its classes
`...Limits` and `Lookback`, of which there is one instance. Guarantees: files are read, not run, for some of them load
torch; a constant without a sentence below it is listed with the one of the group it is in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow_stability.kinds.documentation import Threshold

FOLDERS = ("curves", "detectors", "diagnosis", "kinds", "recovery")
CONFIGS = ("Limits", "Lookback")
"""How the names of classes end whose fields are such numbers."""
_PACKAGE = Path(__file__).parents[1]
_OPERATORS = {
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
    ast.LShift: lambda a, b: a << b,
}


def rule_constants() -> Iterator[tuple[str, list[Threshold]]]:
    """Each file that has any, and its constants."""
    for folder in FOLDERS:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            found = list(_constants_in(ast.parse(path.read_text(encoding="utf-8")).body))
            if found:
                yield path.relative_to(_PACKAGE).as_posix(), found


def _constants_in(body: list[ast.stmt]) -> Iterator[Threshold]:
    for at, statement in enumerate(body):
        if isinstance(statement, ast.ClassDef) and statement.name.endswith(CONFIGS):
            yield from _fields_in(statement.body)
        if not isinstance(statement, ast.Assign):
            continue
        target = statement.targets[0]
        names = [each.id for each in _parts(target) if isinstance(each, ast.Name)]
        values = [_number(each) for each in _parts(statement.value)]
        if len(names) != len(values) or not all(name.isupper() and name[0] != "_" for name in names):
            continue
        meaning = _meaning(body[at + 1 :])
        yield from (Threshold(n, v, meaning) for n, v in zip(names, values, strict=True) if v is not None)


def _fields_in(body: list[ast.stmt]) -> Iterator[Threshold]:
    """The fields of a class that are numbers."""
    for at, statement in enumerate(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            value = _number(statement.value)
            if value is not None:
                yield Threshold(statement.target.id, value, _meaning(body[at + 1 :]))


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _meaning(following: list[ast.stmt]) -> str:
    """The sentence below a constant; constants in a row share the one below the last of them."""
    for each in following:
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
            return " ".join(each.value.value.split())
        if not isinstance(each, ast.Assign):
            return ""
    return ""


def _number(node: ast.expr) -> float | None:
    """The value of a number, or of a product, quotient or power of numbers."""
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
