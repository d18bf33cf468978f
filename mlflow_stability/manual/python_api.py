"""The reference of the public Python names, read from their source without importing it.

In: the public names of the package and the modules that hold them. Out: a page with signature and docstring of each, as
Markdown. Guarantees: nothing is imported for it, so that it can be read where there is no torch.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import mlflow_stability

_DETECTORS = (
    "The classes of detectors are in `mlflow_stability.kinds`: "
    "see [Options](options.md#detectors-with-thresholds-of-your-own)."
)
Definition = ast.FunctionDef | ast.ClassDef
_ANNOTATED_DEFAULT = re.compile(r"^(\w+: [^=]+)=")
"""`name: type=default`, as `ast.unparse` writes it."""
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""An argument and its sentences, in the `Args:` of a docstring."""


def page() -> str:
    """Every public name."""
    lines = ["# Python API", "", "Everything here is imported from `mlflow_stability`.", "", _DETECTORS]
    for name in sorted(mlflow_stability.PUBLIC, key=str.lower):
        lines += ["", f"## {name}", "", *_described(_definition(name), name)]
    return "\n".join(lines) + "\n"


def argument_meanings(name: str) -> dict[str, str]:
    """What the docstring of a public function says of each of its arguments."""
    text = inspect.cleandoc(ast.get_docstring(_definition(name)) or "").partition("Args:\n")[2]
    found = _ARGUMENT.findall(text)
    return {argument: " ".join(said.split()) for argument, said in found}


def field_meanings(name: str) -> dict[str, str]:
    """What is written under each field of a public class."""
    definition = _definition(name)
    assert isinstance(definition, ast.ClassDef)
    return {field: meaning for field, _, _, meaning in _fields(definition)}


def field_rows(name: str) -> Iterator[str]:
    """A table of the fields of a public class."""
    definition = _definition(name)
    assert isinstance(definition, ast.ClassDef)
    yield from _table_of_fields(definition)


def argument_rows(name: str) -> Iterator[str]:
    """A table of the arguments of a public function."""
    definition, meanings = _definition(name), argument_meanings(name)
    assert isinstance(definition, ast.FunctionDef)
    yield from ("", "| argument | default | meaning |", "| --- | --- | --- |")
    for argument, default in zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True):
        value = "" if default is None else f"`{ast.unparse(default)}`".replace("'", '"')
        yield f"| `{argument.arg}` | {value} | {meanings[argument.arg]} |"


def _definition(name: str) -> Definition:
    # By its path: `importlib.util.find_spec` imports the packages around a module, and with them torch.
    file = Path(mlflow_stability.__file__).parent.joinpath(*mlflow_stability.PUBLIC[name].split(".")[1:])
    tree = ast.parse(file.with_suffix(".py").read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, Definition) and node.name == name)


def _described(found: Definition, name: str) -> Iterator[str]:
    if _is_called(found):
        yield from ("```text", _signature(found, name), "```", "")
    yield inspect.cleandoc(ast.get_docstring(found) or "")
    if isinstance(found, ast.ClassDef):
        yield from _table_of_fields(found)
        for method in found.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
                yield ""
                yield f"- `{_shown(method)}`: {_first_line(method)}"


def _is_called(found: Definition) -> bool:
    """Whether users call it; other classes are of what they are given."""
    if isinstance(found, ast.FunctionDef):
        return True
    if any(ast.unparse(base) == "Enum" for base in found.bases):
        return False
    made = {ast.unparse(each) for each in found.decorator_list} | {getattr(each, "name", "") for each in found.body}
    return bool(made & {"check_init_arguments", "__init__"})


def _shown(method: ast.FunctionDef) -> str:
    """A method as it is called, a property with its type."""
    if any(isinstance(each, ast.Name) and each.id == "property" for each in method.decorator_list):
        return f"{method.name}: {ast.unparse(method.returns)}" if method.returns is not None else method.name
    return _signature(method, method.name, bound=True, wide=True)


def _signature(found: Definition, name: str, *, bound: bool = False, wide: bool = False) -> str:
    """How it is called: in one line where that is short, else one argument a line."""
    if isinstance(found, ast.ClassDef):
        methods = (each for each in found.body if isinstance(each, ast.FunctionDef))
        made = next((each for each in methods if each.name == "__init__"), None)
        return _signature(made, name, bound=True) if made else f"{name}(...)"
    arguments = _arguments(ast.unparse(found.args))[1 if bound else 0 :]
    given = f" -> {ast.unparse(found.returns)}" if found.returns is not None and found.name != "__init__" else ""
    line = f"{name}({', '.join(arguments)}){given}"
    if len(line) <= 80 or wide:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in arguments), f"){given}"])


def _table_of_fields(found: ast.ClassDef) -> Iterator[str]:
    """The fields of a dataclass, or the members of an enumeration: type, default, and what is written under each."""
    rows = list(_fields(found))
    if rows:
        yield from ("", "| field | type | default | meaning |", "| --- | --- | --- | --- |")
    for *code, meaning in rows:
        cells = [*(f"`{cell}`" if cell else "" for cell in code), meaning]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _fields(found: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each."""
    for field, under in pairwise([*found.body, ast.Pass()]):
        said = under.value if isinstance(under, ast.Expr) else None
        meaning = " ".join(str(said.value).split()) if isinstance(said, ast.Constant) else ""
        if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
            yield ast.unparse(field.target), ast.unparse(field.annotation), _default(field.value), meaning
        elif isinstance(field, ast.Assign) and not ast.unparse(field.targets[0]).startswith("_"):
            name = ast.unparse(field.targets[0])
            yield (name, "", _default(field.value), meaning) if meaning else (name, "", "", _sentence_of(field.value))


def _sentence_of(member: ast.expr) -> str:
    """The text of an enumeration's member, or the first of its values."""
    value = member.elts[0] if isinstance(member, ast.Tuple) else member
    return str(value.value) if isinstance(value, ast.Constant) else ""


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call):
        given = {each.arg: each.value for each in value.keywords}
        made = given.get("default_factory")
        is_a_field = ast.unparse(value.func) == "field"
        value = given.get("default", ast.Call(made, [], []) if made is not None else None if is_a_field else value)
    return ast.unparse(value) if value is not None else ""


def _arguments(parts: str) -> list[str]:
    """The arguments one by one: commas within brackets part nothing."""
    found, depth, begun = [], 0, ""
    for letter in parts:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append(begun)
            begun = ""
        else:
            begun += letter
    return [_ANNOTATED_DEFAULT.sub(r"\1 = ", each.strip()) for each in (*found, begun) if each.strip()]


def _first_line(method: ast.FunctionDef) -> str:
    return inspect.cleandoc(ast.get_docstring(method) or "").split("\n\n")[0].replace("\n", " ")
