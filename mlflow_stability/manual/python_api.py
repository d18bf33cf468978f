"""The reference of the public Python names, read from their source.

Nothing is imported for it, so that it can be read where torch is not installed.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import mlflow_stability
from mlflow_stability.vocabulary.discovery import note_of

_DETECTORS = (
    "The classes of detectors are in `mlflow_stability.kinds`: "
    "see [Options](options.md#detectors-with-thresholds-of-your-own)."
)
Definition = ast.FunctionDef | ast.ClassDef
_ANNOTATED_DEFAULT = re.compile(r"^(\w+: [^=]+)=")  # `name: type=default`, as `ast.unparse` writes it
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""An argument and its sentences, in the `Args:` of a docstring."""
_MAX_SIGNATURE_WIDTH = 80


def page() -> str:
    lines = ["# Python API", "", "Everything here is imported from `mlflow_stability`.", "", _DETECTORS]
    for name in sorted(mlflow_stability.PUBLIC, key=str.lower):
        lines += ["", f"## {name}", "", *_description(_definition(name), name)]
    return "\n".join(lines) + "\n"


def argument_meanings(name: str) -> dict[str, str]:
    text = _docstring(_definition(name)).partition("Args:\n")[2]
    return {argument: " ".join(meaning.split()) for argument, meaning in _ARGUMENT.findall(text)}


def field_meanings(name: str) -> dict[str, str]:
    """Return the note on each field of a public class."""
    return {field: meaning for field, _, _, meaning in _fields(name)}


def argument_rows(name: str) -> Iterator[str]:
    definition, meanings = _definition(name), argument_meanings(name)
    assert isinstance(definition, ast.FunctionDef)
    yield from ("", "| argument | default | meaning |", "| --- | --- | --- |")
    for argument, default in zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True):
        value = "" if default is None else f"`{ast.unparse(default)}`".replace("'", '"')
        yield f"| `{argument.arg}` | {value} | {meanings[argument.arg]} |"


def _source(name: str) -> str:
    # By its path: `importlib.util.find_spec` imports the packages around a module, and with them torch.
    file = Path(mlflow_stability.__file__).parent.joinpath(*mlflow_stability.PUBLIC[name].split(".")[1:])
    return file.with_suffix(".py").read_text(encoding="utf-8")


def _definition(name: str) -> Definition:
    body = ast.parse(_source(name)).body
    return next(node for node in body if isinstance(node, Definition) and node.name == name)


def _docstring(definition: Definition) -> str:
    return inspect.cleandoc(ast.get_docstring(definition) or "")


def _description(definition: Definition, name: str) -> Iterator[str]:
    if _is_called(definition):
        yield from ("```text", _signature(definition, name), "```", "")
    yield _docstring(definition)
    if isinstance(definition, ast.ClassDef):
        yield from field_rows(name)
        for method in definition.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
                summary = _docstring(method).split("\n\n")[0].replace("\n", " ")
                yield from ("", f"- `{_method(method)}`: {summary}")


def _is_called(definition: Definition) -> bool:
    """Whether users call it; objects of other classes are results."""
    if isinstance(definition, ast.FunctionDef):
        return True
    if any(ast.unparse(base) == "Enum" for base in definition.bases):
        return False
    decorators = {ast.unparse(decorator) for decorator in definition.decorator_list}
    has_init = any(isinstance(node, ast.FunctionDef) and node.name == "__init__" for node in definition.body)
    return has_init or "check_init_arguments" in decorators


def _method(method: ast.FunctionDef) -> str:
    """Return the signature of a method, or a property with its type."""
    if any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in method.decorator_list):
        return f"{method.name}: {ast.unparse(method.returns)}" if method.returns is not None else method.name
    return _signature(method, method.name, bound=True, wide=True)


def _signature(definition: Definition, name: str, *, bound: bool = False, wide: bool = False) -> str:
    """Return a signature in one line where that is short, or `wide`; else with one argument a line."""
    if isinstance(definition, ast.ClassDef):
        methods = (node for node in definition.body if isinstance(node, ast.FunctionDef))
        init = next((method for method in methods if method.name == "__init__"), None)
        return _signature(init, name, bound=True) if init else f"{name}(...)"
    arguments = _arguments(ast.unparse(definition.args))[1 if bound else 0 :]
    has_result = definition.returns is not None and definition.name != "__init__"
    result = f" -> {ast.unparse(definition.returns)}" if has_result and definition.returns else ""
    line = f"{name}({', '.join(arguments)}){result}"
    if len(line) <= _MAX_SIGNATURE_WIDTH or wide:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){result}"])


def _arguments(text: str) -> list[str]:
    """Split arguments at the commas outside of brackets."""
    arguments, depth, argument = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            arguments.append(argument)
            argument = ""
        else:
            argument += letter
    return [_ANNOTATED_DEFAULT.sub(r"\1 = ", part.strip()) for part in (*arguments, argument) if part.strip()]


def field_rows(name: str) -> Iterator[str]:
    """Yield a table of the fields of a dataclass, or of the members of an enumeration."""
    rows = list(_fields(name))
    if rows:
        yield from ("", "| field | type | default | meaning |", "| --- | --- | --- | --- |")
    for *code, meaning in rows:
        cells = [*(f"`{cell}`" if cell else "" for cell in code), meaning]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _fields(class_name: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and meaning."""
    lines = _source(class_name).splitlines()
    for field, below in pairwise([*_definition(class_name).body, ast.Pass()]):
        meaning = note_of(field, below, lines)
        if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
            yield ast.unparse(field.target), ast.unparse(field.annotation), _default(field.value), meaning
        elif isinstance(field, ast.Assign) and not ast.unparse(field.targets[0]).startswith("_"):
            name = ast.unparse(field.targets[0])
            if meaning:
                yield name, "", _default(field.value), meaning
            else:  # the text of an enumeration's member, or the first of its values
                value = field.value.elts[0] if isinstance(field.value, ast.Tuple) else field.value
                yield name, "", "", str(value.value) if isinstance(value, ast.Constant) else ""


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        keywords = {keyword.arg: keyword.value for keyword in value.keywords}
        factory = keywords.get("default_factory")
        value = keywords.get("default", ast.Call(factory, [], []) if factory is not None else None)
    elif isinstance(value, ast.Call):  # `argument(default=..., ...)`
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), value)
    return ast.unparse(value) if value is not None else ""
