"""The JSON schema of the facts of findings, from their classes: types of the fields, and their comments.

Run it to write them into the published schema: ``python tests/reports/run/facts_schema.py``.
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import textwrap
import types
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from mlflow_stability.kinds.catalog import documentation  # its import registers the facts of all kinds
from mlflow_stability.vocabulary.facts import classes_of_facts

PACKAGE = "mlflow_stability."
FILE = Path(__file__).parents[3] / "mlflow_stability" / "reports" / "formats" / "diagnosis.schema.json"
COMMENT = re.compile(r"^    (\w+): .*?  # (.+)$", re.MULTILINE)
FIRST = "facts"
"""The definitions from this one on are made here."""


def facts_schema() -> dict[str, Any]:
    """The definitions ``facts``, which is any of them, and one for each class."""
    classes = {kind: cls for kind, cls in classes_of_facts().items() if cls.__module__.startswith(PACKAGE)}
    definitions: dict[str, Any] = {}
    for kind, cls in sorted(classes.items()):
        _define(cls, definitions)
        definition = definitions[cls.__name__]
        definition["required"].insert(0, "kind")
        definition["properties"] = {"kind": {"const": kind}, **definition["properties"]}
    values = [{"$ref": f"#/$defs/{cls.__name__}"} for _, cls in sorted(classes.items())]
    others = {
        "type": "object",
        "properties": {"kind": {"not": {"enum": sorted(classes)}}},
        "description": "Facts that this version does not know: of a detector of your own, or of another version.",
    }
    return {
        "facts": {
            "anyOf": [{"type": "null"}, *values, others],
            "description": "What is known, with types; null for types whose numbers are in `metrics` alone.",
        },
        **definitions,
    }


def _define(cls: type, definitions: dict[str, Any]) -> None:
    """Add the definition of a dataclass, and those of the dataclasses of its fields."""
    if cls.__name__ in definitions:
        return
    hints, meanings = get_type_hints(cls), _meanings(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    definition = definitions[cls.__name__] = {
        "type": "object",
        "description": _description(cls),
        "required": list(names),
        "properties": {},
    }
    for name in names:
        schema = _schema_of(hints[name], definitions)
        definition["properties"][name] = schema | ({"description": meanings[name]} if name in meanings else {})


def _description(cls: Any) -> str:
    """The first line of its docstring, else the sentence of the only finding that has such facts."""
    return (ast.get_docstring(_body(cls)) or documentation(cls.kind).sentence).partition("\n")[0]


def _body(cls: type) -> ast.ClassDef:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    return body


def _schema_of(wanted: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if get_origin(wanted) in (Union, types.UnionType):
        (arg,) = (arg for arg in get_args(wanted) if arg is not types.NoneType)
        return {"anyOf": [_schema_of(arg, definitions), {"type": "null"}]}
    if get_origin(wanted) is tuple:
        parts = get_args(wanted)
        if parts[-1] is Ellipsis:
            return {"type": "array", "items": _schema_of(parts[0], definitions)}
        items = [_schema_of(part, definitions) for part in parts]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if issubclass(wanted, enum.Enum):
        return {"enum": [point.value for point in wanted]}
    if is_dataclass(wanted):
        _define(wanted, definitions)
        return {"$ref": f"#/$defs/{wanted.__name__}"}
    return {
        float: {"$ref": "#/$defs/number"},
        int: {"type": "integer"},
        str: {"type": "string"},
        bool: {"type": "boolean"},
    }[wanted]


@cache
def _meanings(cls: type) -> dict[str, str]:
    """The comment behind each field, or the docstring below it, those of base classes included."""
    by_name: dict[str, str] = {}
    for item in reversed(cls.__mro__):
        if not item.__module__.startswith(PACKAGE):
            continue
        source = textwrap.dedent(inspect.getsource(item))
        by_name |= {name: f"{comment}." for name, comment in COMMENT.findall(source)}
        for field, meaning in pairwise(_body(item).body):
            if isinstance(field, ast.AnnAssign) and isinstance(meaning, ast.Expr):
                by_name[ast.unparse(field.target)] = " ".join(ast.literal_eval(meaning.value).split())
    return by_name


def with_facts(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the definitions of today's classes."""
    definitions = schema["$defs"]
    names = list(definitions)
    kept = names[: names.index(FIRST)] if FIRST in names else names
    return schema | {"$defs": {name: definitions[name] for name in kept} | facts_schema()}


if __name__ == "__main__":
    FILE.write_text(
        json.dumps(with_facts(json.loads(FILE.read_text(encoding="utf-8"))), indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
