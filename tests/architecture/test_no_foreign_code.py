"""Nothing that is read is run: what loads data, and what of the package is a program, is spelled out.

ruff's rules S refuse `eval`, `exec`, `shell=True`, `os.system`, `pickle.load`, `yaml.load` and their like; here is what
they do not see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest
from architecture.repository import PACKAGE, nodes_of, python_files

UNPICKLERS = {"importers/formats/pickled_history.py", "recovery/checkpoints/state_file.py"}
"""Files with an unpickler that has a list of what may be made."""
ONLY_WITH = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
UNSAFE = {"numpy.load", "torch.jit.load", "torch.package.PackageImporter", "joblib.load", "os.popen", "pd.read_pickle"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def unsafe(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What a file does that would run code of a file that it reads."""
    for node in nodes:
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            wanted = ONLY_WITH.get(name)
            given = {word.arg: word.value for word in node.keywords if isinstance(word.value, ast.Constant)}
            if wanted is not None and (wanted[0] not in given or given[wanted[0]].value is not wanted[1]):  # type: ignore[attr-defined]
                yield f"{name} without {wanted[0]}={wanted[1]}"
            if name in UNSAFE:
                yield name
        elif isinstance(node, ast.ImportFrom):
            loaders = {"pickle": {"load", "loads", "Unpickler"}, "torch": {"load"}, "numpy": {"load"}}
            for entry in node.names:
                if entry.name in loaders.get(node.module or "", ()):
                    yield f"{node.module}.{entry.name} by another name"
        elif isinstance(node, ast.Attribute) and dotted(node) in {"pickle.load", "pickle.loads"}:
            yield dotted(node)
        elif isinstance(node, ast.ClassDef) and "pickle.Unpickler" in map(dotted, node.bases):
            methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            yield from [] if "find_class" in methods else [f"{node.name} has no list of what may be made"]


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=safe)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "from torch import load",
        "from pickle import loads as read",
        "read = pickle.loads",
        "torch.jit.load(path)",
        "class Reader(pickle.Unpickler):\n    pass",
    ],
)
def test_what_runs_code_is_found(source: str) -> None:
    assert [*unsafe(ast.walk(ast.parse(source)))]


def test_no_file_of_the_package_runs_what_it_reads() -> None:
    by_path = {path: [*unsafe(nodes_of(path))] for path in python_files(PACKAGE)}
    assert not {str(path): names for path, names in by_path.items() if names}


def test_unpicklers_are_where_they_are_known() -> None:
    result = {
        str(path.relative_to(PACKAGE))
        for path in python_files(PACKAGE)
        if "pickle.Unpickler" in path.read_text(encoding="utf-8")
    }
    assert result == UNPICKLERS
