"""Private symbols of torch are looked up in one file, where it says what is off without each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest
from architecture.repository import PACKAGE, nodes_of, python_files

HOME = PACKAGE / "probes" / "hooks" / "torch_api.py"
OF_OBJECTS = ("getattr", "hasattr", "setattr", "delattr")
OF_MODULES = ("import_module", "__import__", "modules.get")
SYMBOL = re.compile(r"torch(\.\w+)*:\w+(\.\w+)*")


def private_symbols(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What a file takes of torch that begins with an underscore, whatever way it takes it."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            names = [dotted(node)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{entry.name}" for entry in node.names]
        elif isinstance(node, ast.Import):
            names = [entry.name for entry in node.names]
        elif isinstance(node, ast.Call) and dotted(node.func) in OF_OBJECTS:
            names = [f"{dotted(node.args[0])}.{string(node.args[1])}"]
        elif isinstance(node, ast.Call) and dotted(node.func).endswith(OF_MODULES):
            names = [string(node.args[0])]
        elif isinstance(node, ast.Subscript) and dotted(node.value).endswith("modules"):
            names = [string(node.slice)]
        elif SYMBOL.fullmatch(string(node)):
            names = [string(node).replace(":", ".")]
        else:
            continue
        for name in names:
            first, *parts = name.split(".")
            if first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in parts):
                yield name


def string(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._foreach_norm([])",
        "from torch._C import is_grad_enabled",
        "from torch.overrides import _enable_torch_function",
        "import torch._dynamo",
        "import torch.jit._recursive as scripting",
        "getattr(torch.autograd, '_get_sequence_nr', None)",
        "import_module('torch._inductor.config')",
        "sys.modules.get('torch._dynamo')",
        "sys.modules['torch._dynamo']",
        "'torch._C:_autograd._get_sequence_nr'",
    ],
)
def test_a_private_symbol_is_seen_however_it_is_taken(source: str) -> None:
    public = "import torch\ntorch.__version__\nmodule._parameters\n'torch.nn'\n'a_torch._b'"
    assert list(private_symbols(ast.walk(ast.parse(source))))
    assert not list(private_symbols(ast.walk(ast.parse(public))))


def test_no_other_file_takes_a_private_symbol_of_torch() -> None:
    taken = {
        str(file.relative_to(PACKAGE)): seens
        for file in python_files(PACKAGE)
        if file != HOME and (seens := sorted(set(private_symbols(nodes_of(file)))))
    }
    assert taken == {}
