"""Calls of watched modules, observed without touching the modules.

In: modules and observers. Out: each call of a watched module, with its arguments and output. Guarantees: nothing is
added to a module, its class or its hook tables; a call of any other module runs torch's own code after one look into
a dict; what is compiled, traced or exported is the same as without this package; `remove` restores torch's code.

`Module.__call__` stays the same function object, and only its code object changes. torch.fx and the compiler recognise
the function by its identity, and skip its code. The code is made from torch's own source, with calls of the table
added, so that tracebacks and stack levels of warnings are those of torch.
"""

from __future__ import annotations

import ast
import inspect
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch
from torch.nn import Module

from mlflow_stability.errors import TorchLacksError
from mlflow_stability.probes.hooks import torch_api

_TABLE = "<module calls>"
"""Constant of the compiled source that is replaced by the table of watched modules."""
# The compiler replaces `is_dynamo_compiling` by True, and so never meets the table. While compiled code runs, it would
# compile our functions as well, as it does all that is called from there.
_AROUND = f"""
if (not torch.compiler.is_dynamo_compiling() and id(self) in {_TABLE!r} and {_TABLE!r}.compiler() is None
        and {_TABLE!r}.begins(self, args, kwargs)):
    try:
        pass
    except BaseException:
        {_TABLE!r}.fails(self)
        raise
"""
_PARAMETERS = ("self", "args", "kwargs")


class CallObserver(Protocol):
    """Observer of the calls of one module; its methods must not raise."""

    def call_began(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Runs before the call."""

    def call_ended(self, module: Module, args: tuple[Any, ...], output: Any) -> object:
        """Runs after the call, before the observers that were there earlier."""

    def call_failed(self, module: Module) -> object:
        """Runs instead of `call_ended` when the call raised an exception, Ctrl-C included."""


class WatchedCalls:
    """One observer of one module, until it is removed."""

    __slots__ = ("_calls", "_identity", "_observer")

    def __init__(self, calls: ModuleCalls, identity: int, observer: CallObserver) -> None:
        self._calls, self._identity, self._observer = calls, identity, observer

    def remove(self) -> None:
        """End; repeating it does no harm."""
        self._calls.forget(self._identity, self._observer)


class _Entry:
    """A watched module."""

    __slots__ = ("module", "observers")

    def __init__(self, module: weakref.ref[Module], observers: tuple[CallObserver, ...]) -> None:
        self.module, self.observers = module, observers


class ModuleCalls(dict[int, _Entry]):
    """Table of the watched modules, by identity."""

    def __init__(self) -> None:
        super().__init__()
        self.code: CodeType | None = None
        """Code of `Module.__call__` while modules are watched. Made once: profilers remember code by its address."""
        self._function: FunctionType | None = None
        self._before: CodeType | None = None
        self._muted = 0
        self.compiler: Callable[[], object] = torch_api.get_eval_frame_callback
        """Compiler that looks at each function of this thread before it runs, or None."""

    # The table is a constant of a code object, which tools keep in sets.
    def __hash__(self) -> int:  # type: ignore[override] # dicts have none
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def torchs_code(self) -> CodeType:
        """Torch's own code of `Module.__call__`."""
        code: CodeType = torch_api.module_call.__code__
        return code if self._function is None or self._before is None else self._before

    def observe(self, module: Module, observer: CallObserver) -> WatchedCalls:
        """Tell `observer` of every call of `module`. The module is referenced weakly, the observer strongly."""
        self._install()
        key = id(module)
        entry = self.get(key)
        if entry is None or entry.module() is not module:
            self[key] = _Entry(weakref.ref(module, lambda _: self._drop(key)), (observer,))
        else:
            entry.observers = (*entry.observers, observer)
        return WatchedCalls(self, key, observer)

    def watch(self, module: Module, told: Callable[[Module, bool, bool], object]) -> WatchedCalls:
        """Call `told(module, grad_enabled, module.training)` before every call of `module`; it must not raise."""
        return self.observe(module, _Told(told))

    def forget(self, identity: int, observer: CallObserver) -> None:
        """Stop telling `observer` of the calls of the module with this identity."""
        entry = self.get(identity)
        if entry is not None and any(known is observer for known in entry.observers):
            entry.observers = tuple([known for known in entry.observers if known is not observer])
            if not entry.observers:
                self._drop(identity)

    def forget_all(self) -> None:
        """Watch no module any more."""
        self.clear()
        self._muted = 0
        self._restore()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Within it, no observer is told of any call."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    def begins(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Runs before a call of a watched module; False: observers are not told of its end either."""
        entry = self.get(id(module))
        if entry is None or entry.module() is not module or self._muted:
            return False
        if torch.compiler.is_compiling() or torch_api.get_tracing_state() or torch_api.is_fx_symbolic_tracing():
            return False  # this call makes a graph rather than computing something
        try:
            for observer in entry.observers:
                observer.call_began(module, args, kwargs)
        except BaseException:  # Ctrl-C: what was begun is ended
            self.fails(module)
            raise
        return True

    def ends(self, module: Module, args: tuple[Any, ...], output: Any) -> Any:
        """Runs after it, and returns the output."""
        entry = self.get(id(module))
        if entry is not None:
            for observer in reversed(entry.observers):
                observer.call_ended(module, args, output)
        return output

    def fails(self, module: Module) -> None:
        """Runs instead of `ends` after an exception."""
        entry = self.get(id(module))
        if entry is not None:
            for observer in reversed(entry.observers):
                observer.call_failed(module)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Run torch's own code: called only where torch's source is not at hand."""
        function, before = self._function, self._before
        assert function is not None
        assert before is not None
        return FunctionType(before, function.__globals__)(*args, **kwargs)

    def _drop(self, identity: int) -> None:
        self.pop(identity, None)
        if not self:
            self._restore()

    def _install(self) -> None:
        if self._function is not None:
            return
        function = torch_api.module_call
        if not isinstance(function, FunctionType):
            raise TorchLacksError(
                "torch.nn.Module.__call__ is not a plain Python function: forward passes are not seen"
            )
        if self.code is None:
            self.code = _observing_code(function, self)
        self._function, self._before = function, function.__code__
        function.__code__ = self.code

    def _restore(self) -> None:
        function, self._function = self._function, None
        if function is not None and self._before is not None and function.__code__ is self.code:
            function.__code__ = self._before


class _Told:
    """Observer that is told how modules are called, and not with what."""

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[Module, bool, bool], object]) -> None:
        self._told = told

    def call_began(self, module: Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._told(module, torch.is_grad_enabled(), module.training)

    def call_ended(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        """Nothing to tell."""

    def call_failed(self, module: Module) -> None:
        """Nothing to tell."""


def _observing_code(function: FunctionType, table: ModuleCalls) -> CodeType:
    """The code of a function that calls a module, with calls of the table around that call."""
    code = function.__code__
    if code.co_varnames[:3] != _PARAMETERS or code.co_freevars:
        raise TorchLacksError(
            f"{function.__qualname__} has other parameters than expected: forward passes are not seen"
        )
    definition = _definition(function)
    plain = definition.body
    (around,) = ast.parse(_AROUND).body
    assert isinstance(around, ast.If)
    for node in ast.walk(around):
        _place(node, definition)
    (attempt,) = around.body
    assert isinstance(attempt, ast.Try)
    attempt.body = [_TellReturns().visit(deepcopy(statement)) for statement in plain]
    definition.body = [around, *plain]
    observing = _compiled(definition, code)
    consts = tuple(table if const == _TABLE else const for const in observing.co_consts)
    return observing.replace(co_consts=consts)


def _definition(function: FunctionType) -> ast.FunctionDef:
    """The definition as torch has it, or one that calls the original where the source is not that of the code."""
    code = function.__code__
    try:
        source = inspect.getsource(function)
    except OSError:  # torch was installed without its source
        source = ""
    if source:
        # Inside of a class, so that the indentation, and with it the columns of tracebacks, stay.
        tree = ast.parse("class Module:\n" + source)
        ast.increment_lineno(tree, code.co_firstlineno - 2)
        definition = _first_definition(tree)
        made = _compiled(definition, code)
        if (made.co_code, made.co_consts, made.co_names) == (code.co_code, code.co_consts, code.co_names):
            return definition
    name = f"def {code.co_name}(self, *args, **kwargs):\n    return {_TABLE!r}.original(self, *args, **kwargs)\n"
    return _first_definition(ast.parse("class Module:\n " + name.replace("\n", "\n ").rstrip() + "\n"))


def _first_definition(tree: ast.Module) -> ast.FunctionDef:
    (holder,) = tree.body
    assert isinstance(holder, ast.ClassDef)
    (definition,) = holder.body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def _compiled(definition: ast.FunctionDef, like: CodeType) -> CodeType:
    """The code of a method of `Module`, as if it was read from the file of another code."""
    holder = ast.parse("class Module:\n    pass")
    (body,) = holder.body
    assert isinstance(body, ast.ClassDef)
    body.body = [definition]
    outer = compile(holder, like.co_filename, "exec", dont_inherit=True)
    (inner,) = [const for const in outer.co_consts if isinstance(const, CodeType)]
    (code,) = [const for const in inner.co_consts if isinstance(const, CodeType)]
    return code


class _TellReturns(ast.NodeTransformer):
    """`return X` becomes `return table.ends(self, args, X)`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Functions inside return to others."""
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Likewise."""
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Tell of what is returned."""
        value = node.value if node.value is not None else ast.Constant(None)
        (told,) = ast.parse(f"{_TABLE!r}.ends(self, args, value)").body
        assert isinstance(told, ast.Expr)
        assert isinstance(told.value, ast.Call)
        for part in ast.walk(told):
            _place(part, node)
        told.value.args[-1] = ast.copy_location(value, node) if node.value is None else value
        node.value = told.value
        return node


def _place(node: ast.AST, at: ast.stmt) -> None:
    """Have a node stand at the place of another one."""
    if isinstance(node, ast.stmt | ast.expr | ast.excepthandler):
        node.lineno = node.end_lineno = at.lineno
        node.col_offset, node.end_col_offset = at.col_offset, at.end_col_offset or at.col_offset


MODULE_CALLS = ModuleCalls()
"""The table of this process: `Module.__call__` is there once."""
os.register_at_fork(after_in_child=MODULE_CALLS.forget_all)
