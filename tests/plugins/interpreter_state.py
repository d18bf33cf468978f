"""What a test may change in the interpreter: recursion limit, environment, loggers, signals, threads, ….

Filters of warnings, ``warnings.showwarning`` and ``sys.stdout`` are no parts: pytest puts them back after every phase
of a test. Loggers and variables of the environment that a library adds at its first import are not a change.
"""

from __future__ import annotations

import gc
import locale
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from plugins.process_state import Part, Snapshot

PATIENCE = 2.0
"""Seconds that a thread that was asked to end may take for it."""
SIGNALS = [getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "QUIT", "PIPE", "CHLD", "USR1", "USR2")]
FOREIGN_VARIABLES = {
    "PYTEST_CURRENT_TEST",  # pytest: which test is running
    "KMP_DUPLICATE_LIB_OK",  # torch
    "KMP_INIT_AT_FORK",  # torch
    "PYTORCH_NVML_BASED_CUDA_CHECK",  # Lightning
    "_MLFLOW_LIGHTNING_AUTOLOGGING_TMP_DIR",  # MLflow's autologging of Lightning
    "TORCHINDUCTOR_CACHE_DIR",  # torch's compiler, at its first use
    "TRITON_CACHE_DIR",  # likewise
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",  # likewise
}


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}


def _put_environment_back(before: Mapping[str, str]) -> None:
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _search_path() -> tuple[str, ...]:
    """Setuptools adds what it brings along at its import."""
    return tuple(text for text in sys.path if not text.endswith("setuptools/_vendor"))


def _put_search_path_back(before: Iterable[str]) -> None:
    sys.path[:] = before


def _signal_handlers() -> dict[str, Any]:
    return {entry.name: signal.getsignal(entry) for entry in SIGNALS}


def _put_signal_handlers_back(before: Mapping[str, Any]) -> None:
    for name, handler in before.items():
        signal.signal(signal.Signals[name], signal.SIG_DFL if handler is None else handler)


Logger = tuple[int, bool, bool, tuple[object, ...]]


AS_MADE: Logger = (logging.NOTSET, True, False, ())


def _loggers() -> dict[str, Logger]:
    """Level, whether it passes records on, whether it is switched off, and its handlers.

    There are hundreds, and this runs twice for each test: most are as they were made.
    """
    values = {"root": logging.root, **logging.root.manager.loggerDict}
    return {
        name: _logger(item) if item.handlers or item.level or item.disabled or not item.propagate else AS_MADE
        for name, item in values.items()
        if type(item) is not logging.PlaceHolder
    }


def _logger(logger: logging.Logger) -> Logger:
    handlers = tuple(handler for handler in logger.handlers if not _comes_and_goes(handler))
    return logger.level, logger.propagate, logger.disabled, handlers


def _comes_and_goes(handler: logging.Handler) -> bool:
    """Pytest's are there for a phase of a test, torch's compiler removes its own. One without effect does not count."""
    return type(handler).__module__.startswith(("_pytest.", "torch._logging.")) or type(handler) is logging.NullHandler


def _put_loggers_back(before: Mapping[str, Logger]) -> None:
    for name, (level, propagate, disabled, handlers) in before.items():
        logger = logging.root if name == "root" else logging.getLogger(name)
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled
        logger.handlers[:] = [*handlers, *filter(_comes_and_goes, logger.handlers)]


def _threads() -> frozenset[threading.Thread]:
    """Threads that live, but for those that Python did not start, and those that tqdm, MLflow, Dask and torch keep.

    A server of the standard library has one for each connection that a client keeps open.
    """
    kept = _threads_of_the_compiler()
    return frozenset(
        thread
        for thread in threading.enumerate()
        if thread not in kept
        and type(thread).__name__ not in ("_DummyThread", "TMonitor")
        and not thread.name.startswith(("Mlflow", "IO loop"))
        and "(process_request_thread)" not in thread.name
    )


def _threads_of_the_compiler() -> set[threading.Thread]:
    """Those in which torch compiles: one pool for the process, from the first code that its cache lacks."""
    compiling = sys.modules.get("torch._inductor.async_compile")
    make_pool = compiling.AsyncCompile.pool if compiling else None
    return set(make_pool()._threads) if make_pool and make_pool.cache_info().currsize else set()


def wait_for_threads(before: Snapshot) -> None:
    """Give threads that were asked to end the time for it."""
    (old,) = (value for part, value in before.items() if part.read is _threads)
    until = time.monotonic() + PATIENCE
    for thread in _threads() - old:
        thread.join(max(0.0, until - time.monotonic()))


def _hooks() -> dict[str, Any]:
    return {
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "trace function": sys.gettrace(),
        "profile function": sys.getprofile(),
    }


def _put_hooks_back(before: Mapping[str, Any]) -> None:
    sys.excepthook, threading.excepthook = before["sys.excepthook"], before["threading.excepthook"]
    sys.settrace(before["trace function"])
    sys.setprofile(before["profile function"])


def _collector() -> tuple[Any, ...]:
    return gc.isenabled(), *gc.get_threshold()


def _put_collector_back(before: tuple[Any, ...]) -> None:
    (gc.enable if before[0] else gc.disable)()
    gc.set_threshold(*before[1:])


INTERPRETER = (
    Part("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Part("the working directory", os.getcwd, os.chdir),
    Part("the environment", _environment, _put_environment_back),
    Part("sys.path", _search_path, _put_search_path_back),
    Part("signal handlers", _signal_handlers, _put_signal_handlers_back),
    Part("hooks of the interpreter", _hooks, _put_hooks_back),
    Part("the garbage collector", _collector, _put_collector_back),
    Part("loggers", _loggers, _put_loggers_back, grows=True),
    Part("logging.disable", lambda: logging.root.manager.disable, logging.disable),
    Part("logging.captureWarnings", lambda: bool(vars(logging)["_warnings_showwarning"]), logging.captureWarnings),
    Part("threads", _threads, lambda before: None, shrinks=True),
    Part(
        "the start method of processes",
        # The first process that is started makes the default one that was chosen.
        lambda: multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        lambda method: multiprocessing.set_start_method(method, force=True),
    ),
    Part("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    Part("the timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
)
