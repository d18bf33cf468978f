"""Calls of watched modules, observed without touching the modules.

`Module.__call__` stays the same function object, and only its code object changes: torch.fx and the compiler recognise
the function by its identity, and skip its code. The code is made from torch's own source, with calls of the table
added, so that tracebacks and stack levels of warnings are those of torch.

Guarantees: nothing is added to a module, its class or its hook tables; a call of any other module runs torch's own
code after one look into a dict; what is compiled, traced or exported is the same as without this package; `remove`
restores torch's code.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any, Protocol, TypeAlias

import torch
from torch.nn import Module

from mlflow_stability.errors import TorchLacksError
from mlflow_stability.probes.hooks import torch_api

_TABLE = "<module calls>"  # constant of the compiled source, replaced by the table of watched modules
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
BeforeCall: TypeAlias = Callable[[Module, tuple[Any, ...], dict[str, Any]], object]


class CallObserver(Protocol):
    """Observer of the calls of one module; its methods must not raise."""

    def call_began(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object: ...

    def call_ended(self, module: Module, args: tuple[Any, ...], output: Any) -> object:
        """Runs after the call, before the observers that were there earlier."""

    def call_failed(self, module: Module) -> object:
        """Runs instead of `call_ended` when the call raised an exception, Ctrl-C included."""


class _Entry:
    __slots__ = ("module", "observers")

    def __init__(self, module: weakref.ref[Module], observers: tuple[CallObserver, ...]) -> None:
        self.module, self.observers = module, observers


class ModuleCalls(dict[int, _Entry]):
    """Table of the watched modules, by identity."""

    def __init__(self) -> None:
        super().__init__()
        # Code of `Module.__call__` while modules are watched. Made once: profilers remember code by its address.
        self.code: CodeType | None = None
        self._function: FunctionType | None = None
        self._before: CodeType | None = None
        self._muted = 0
        # Compiler that looks at each function of this thread before it runs, or None.
        self.compiler: Callable[[], object] = torch_api.get_eval_frame_callback

    # The table is a constant of a code object, which tools keep in sets.
    def __hash__(self) -> int:  # type: ignore[override] # dicts have none
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def torchs_code(self) -> CodeType:
        code: CodeType = torch_api.module_call.__code__
        return code if self._function is None or self._before is None else self._before

    def observe(self, module: Module, observer: CallObserver) -> Callable[[], None]:
        """Tell `observer` of every call of `module`, until the function that is returned is called, once or more.

        The module is referenced weakly, the observer strongly.
        """
        self._install()
        key = id(module)
        entry = self.get(key)
        if entry is None or entry.module() is not module:
            self[key] = _Entry(weakref.ref(module, lambda _: self._drop(key)), (observer,))
        else:
            entry.observers = (*entry.observers, observer)
        return partial(self.forget, key, observer)

    def watch(self, module: Module, began: BeforeCall) -> Callable[[], None]:
        """Call `began(module, args, kwargs)` before every call of `module`; it must not raise."""
        return self.observe(module, _BeforeCalls(began))

    def forget(self, identity: int, observer: CallObserver) -> None:
        entry = self.get(identity)
        if entry is not None:
            entry.observers = tuple([other for other in entry.observers if other is not observer])
            if not entry.observers:
                self._drop(identity)

    def forget_all(self) -> None:
        self.clear()
        self._muted = 0
        self._restore()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Tell no observer of any call inside."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    def begins(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Run before a call of a watched module; return False if observers do not see its end either."""
        entry = self.get(id(module))
        if entry is None or entry.module() is not module or self._muted:
            return False
        if torch.compiler.is_compiling() or torch_api.get_tracing_state() or torch_api.is_fx_symbolic_tracing():
            return False  # this call makes a graph
        try:
            for observer in entry.observers:
                observer.call_began(module, args, kwargs)
        except BaseException:  # Ctrl-C: what was begun is ended
            self.fails(module)
            raise
        return True

    def ends(self, module: Module, args: tuple[Any, ...], output: Any) -> Any:
        """Run after the call; return the output."""
        entry = self.get(id(module))
        if entry is not None:
            for observer in reversed(entry.observers):
                observer.call_ended(module, args, output)
        return output

    def fails(self, module: Module) -> None:
        """Run instead of `ends` after an exception."""
        entry = self.get(id(module))
        if entry is not None:
            for observer in reversed(entry.observers):
                observer.call_failed(module)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Run torch's own code; called only where torch's source is missing."""
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


class _BeforeCalls:
    __slots__ = ("call_began",)

    def __init__(self, began: BeforeCall) -> None:
        self.call_began = began

    def call_ended(self, module: Module, args: tuple[Any, ...], output: Any) -> None: ...

    def call_failed(self, module: Module) -> None: ...


def _observing_code(function: FunctionType, table: ModuleCalls) -> CodeType:
    code = function.__code__
    if code.co_varnames[:3] != _PARAMETERS or code.co_freevars:
        raise TorchLacksError(
            f"{function.__qualname__} has other parameters than expected: forward passes are not seen"
        )
    definition = _definition_of(function)
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


def _definition_of(function: FunctionType) -> ast.FunctionDef:
    """Return torch's definition, or one that calls the original where the source is not that of the code."""
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
    holder = ast.parse("class Module:\n    pass")
    (body,) = holder.body
    assert isinstance(body, ast.ClassDef)
    body.body = [definition]
    outer = compile(holder, like.co_filename, "exec", dont_inherit=True)
    (inner,) = [const for const in outer.co_consts if isinstance(const, CodeType)]
    (code,) = [const for const in inner.co_consts if isinstance(const, CodeType)]
    return code


class _TellReturns(ast.NodeTransformer):
    """Turns `return X` into `return table.ends(self, args, X)`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # functions inside return to others

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        value = node.value if node.value is not None else ast.Constant(None)
        (call,) = ast.parse(f"{_TABLE!r}.ends(self, args, value)").body
        assert isinstance(call, ast.Expr)
        assert isinstance(call.value, ast.Call)
        for part in ast.walk(call):
            _place(part, node)
        call.value.args[-1] = ast.copy_location(value, node) if node.value is None else value
        node.value = call.value
        return node


def _place(node: ast.AST, at: ast.stmt) -> None:
    if isinstance(node, ast.stmt | ast.expr | ast.excepthandler):
        node.lineno = node.end_lineno = at.lineno
        node.col_offset, node.end_col_offset = at.col_offset, at.end_col_offset or at.col_offset


MODULE_CALLS = ModuleCalls()
os.register_at_fork(after_in_child=MODULE_CALLS.forget_all)


def running_calls(identity: int) -> int:
    """Return how many calls of the module with this identity run in this thread."""
    count = 0
    code = MODULE_CALLS.code
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code and id(frame.f_locals["self"]) == identity:
            count += 1
        frame = frame.f_back
    return count


class RunningPass:
    """Callable that tells whether a call of a module still runs, also after Ctrl-C has ended it without notice.

    Guarantees: nothing of the call is kept alive after it, neither its inputs nor its outputs.
    """

    __slots__ = ("_frame",)

    def __init__(self, root: Module) -> None:
        code = MODULE_CALLS.code
        frame: FrameType | None = sys._getframe()
        while frame is not None and not (frame.f_code is code and frame.f_locals["self"] is root):
            frame = frame.f_back
        self._frame = frame

    def __call__(self) -> bool:
        frame: FrameType | None = sys._getframe() if self._frame is not None else None
        while frame is not None:
            if frame is self._frame:
                return True
            frame = frame.f_back
        return False

    def over(self) -> None:
        self._frame = None
