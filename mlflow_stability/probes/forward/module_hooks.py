"""Forward hooks on modules, permanent or for one forward pass, that leave no trace in copies and pickles.

In: modules, and what to run before and after their forward pass. Out: nothing. Guarantees: a copied or pickled module
has an idle Python function where the hooks were, so that it loads without this package; a compiled module is hooked
from the outside; after `remove` no hook runs again.

Torch iterates over the hooks of a module whose pass raised, and would raise itself if one were removed meanwhile.
Such a hook becomes idle and is removed at the next `remove`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.running_calls import calls_through

Before = Callable[[Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[Module, Any], None]
"""Takes the module and what came out of it."""
Failed = Callable[[Module], None]
_idle = contextlib.nullcontext().__exit__  # takes anything, does nothing, returns None


class ForwardHooks:
    """The hooks on one module."""

    def __init__(self, root: Module, before: Before, after: After, failed: Failed) -> None:
        self._root = weakref.ref(root)
        self._failed = failed
        self._before = before
        self._after = after
        self._handles: list[RemovableHandle] = []
        self._compiled: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        """What `Module.compile` put in the place of the module's call, and what we put around it."""

    @property
    def root(self) -> Module | None:
        """The module; None once the script has let go of it."""
        return self._root()

    def put_on(self) -> None:
        """Begin to listen."""
        root = self._root()
        if root is None:
            return
        compiled = getattr(root, "_compiled_call_impl", None)
        if compiled is not None:
            self._compiled = compiled, self._around(compiled)
            root._compiled_call_impl = self._compiled[1]
            return
        self._handles.append(root.register_forward_pre_hook(_BeforeHook(self._before), with_kwargs=True))
        self._handles.append(root.register_forward_hook(_AfterHook(self._after, self._failed), always_call=True))

    def remove(self) -> None:
        """Leave the module as it was."""
        while self._handles:
            self._handles.pop().remove()
        root = self._root()
        if root is not None and self._compiled is not None and root._compiled_call_impl is self._compiled[1]:
            root._compiled_call_impl = self._compiled[0]
        self._compiled = None

    def _around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.compile` compiles hooks with the rest; what calls the compiled code is outside of it."""
        reference, before, after, failed = self._root, self._before, self._after, self._failed

        def call(*args: Any, **kwargs: Any) -> Any:
            root = reference()
            if root is None or torch.compiler.is_compiling():
                return compiled(*args, **kwargs)
            before(root, args, kwargs)
            try:
                result = compiled(*args, **kwargs)
            except BaseException:
                failed(root)
                raise
            after(root, result)
            return result

        calls_through(call.__code__, "root")
        return call


def drop_idle_hooks(model: Module) -> None:
    """Take what was left in copies of a watched module out of them: it does nothing, but cannot be scripted."""
    for module in Module.modules(model):
        for name in _HOOKS:
            hooks = getattr(module, name)
            for key in [key for key, hook in hooks.items() if _is_idle(hook)]:
                del hooks[key]
                for marks in (f"{name}_with_kwargs", f"{name}_always_called"):
                    getattr(module, marks, {}).pop(key, None)


def _is_idle(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), contextlib.nullcontext)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class Hook:
    """A hook that stays behind when its module is copied or saved."""

    __slots__ = ("_run",)

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _idle

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _BeforeHook(Hook):
    __slots__ = ()

    def __call__(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            self._run(root, args, kwargs)


class _AfterHook(Hook):
    __slots__ = ("_failed",)

    def __init__(self, run: After, failed: Failed) -> None:
        super().__init__(run)
        self._failed = failed

    def __call__(self, root: Module, _args: tuple[Any, ...], outputs: Any) -> None:
        if not torch.compiler.is_compiling():
            if outputs is None:  # torch calls this after an exception, too, and then there is no output
                self._failed(root)
            else:
                self._run(root, outputs)


AfterCall = Callable[[Module, tuple[Any, ...], Any], None]


class PassHooks:
    """The hooks of one probe in one forward pass; its bodies are made harmless by whoever gives them."""

    def __init__(self, root: Module) -> None:
        self._root = root
        self._on = True
        self._handles: list[tuple[Module, RemovableHandle]] = []

    def before(self, module: Module, body: Before) -> None:
        """Run `body(module, args, kwargs)` before each forward pass of a module."""
        handle = module.register_forward_pre_hook(_BeforePass(self._while_on(body)), with_kwargs=True)
        self._handles.append((module, handle))

    def after(self, module: Module, body: AfterCall) -> None:
        """Run `body(module, args, output)` after it."""
        hook = _AfterPass(self._while_on(body))
        # Before the hook by which a root tells that its pass is over.
        self._handles.append((module, module.register_forward_hook(hook, prepend=True)))

    def remove(self, whole: bool) -> None:
        """Take them off. `whole`: the pass has not raised an exception, or is long over."""
        self._on = False
        kept = []
        for module, handle in self._handles:
            if module is self._root and not whole:
                kept.append((module, handle))
            else:
                handle.remove()
        self._handles = kept

    @property
    def hold_anything(self) -> bool:
        """Whether one is still on a module."""
        return bool(self._handles)

    def _while_on(self, body: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            if self._on and not torch.compiler.is_compiling() and not torch_api.get_tracing_state():
                body(*args)

        return run


class _BeforePass(Hook):
    __slots__ = ()

    def __call__(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._run(module, args, kwargs)


class _AfterPass(Hook):
    __slots__ = ()

    def __call__(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        self._run(module, args, output)
