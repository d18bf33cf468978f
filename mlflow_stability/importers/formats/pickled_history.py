"""Read a pickled history, as Keras users keep theirs: `pickle.dump(history.history, file)`.

Guarantees: nothing that the file names is imported or run. The few functions of NumPy that a pickle
may name are replaced by functions of this module; every other name is refused. Time and memory are bounded.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.formats.json_document import Document, document_history
from mlflow_stability.importers.log_format import LogFile, LogFormat, RecognisedBy
from mlflow_stability.importers.log_text import open_bytes, printable, printable_path
from mlflow_stability.vocabulary.run import RunHistory

MAX_BYTES = 128 * 1024 * 1024  # a pickle is held whole; no history is larger
MAX_OPERATIONS = 4_000_000
MAX_VALUES = 5_000_000
_MAX_ARRAY_BYTES = 8 * MAX_VALUES
_MAX_TEXT_BYTES = 5000
_MAX_DEPTH = 50
_NUMBER_TYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
_BINARY = re.compile(rb"\x80[\x02-\x05]|[}\]]q\x00[(X.}\]]|[}\]]\.")
_TEXT = re.compile(rb"\((?:d|l)p\d+\r?\n|\((?:d|l)\.")


def read_pickled_history(log_file: LogFile) -> list[RunHistory] | None:
    """Return the run in a pickle; None for another file."""
    if not (_BINARY.match(log_file.head) or _TEXT.match(log_file.head)):
        return None
    with open_bytes(log_file.path) as file:
        content = file.read(MAX_BYTES + 1)
    try:
        if len(content) > MAX_BYTES:
            raise NotPlainError(f"more than {MAX_BYTES // 1024**2} MiB")
        value = plain_value(content)
    except NotPlainError as error:
        raise UnreadableLogError(
            f"{printable_path(log_file.path)} is a pickle, and it holds {printable(str(error))}. Only pickles of "
            "numbers, strings, lists and dictionaries are read, because others can run arbitrary code; checkpoints "
            "have no curves. Save the history as JSON or CSV: json.dump(history.history, file)."
        ) from None
    return [document_history(log_file.path, Document(value), "pickle")]


class NotPlainError(ValueError):
    """The pickle holds something else, which is the message."""


def plain_value(content: bytes) -> object:
    """Return the numbers, texts, lists and dictionaries of a pickle, NumPy's numbers and arrays as plain ones."""
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
            # The unpickler allocates its memo up to the largest index.
            far = "PUT" in operation.name and int(str(argument)) > MAX_OPERATIONS
            if count > MAX_OPERATIONS or far:
                raise NotPlainError(f"more than {MAX_OPERATIONS:,} values")
        value = _PlainUnpickler(io.BytesIO(content)).load()
        return _Plain().value(value)
    except NotPlainError:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        raise NotPlainError("damaged data") from error


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin-1")  # texts of Python 2 may be bytes
        self._bytes_left = _MAX_ARRAY_BYTES
        self._replacements = {
            ("_codecs", "encode"): _Named(self._encode),
            ("numpy", "dtype"): _Named(_dtype),
            ("numpy", "ndarray"): _Named(_not_callable),
        }
        for core in ("numpy.core", "numpy._core"):
            self._replacements[f"{core}.multiarray", "scalar"] = _Named(self._scalar)
            self._replacements[f"{core}.multiarray", "_reconstruct"] = _Named(lambda *_: _Array(self._numbers))
            self._replacements[f"{core}.numeric", "_frombuffer"] = _Named(self._from_buffer)

    def find_class(self, module: str, name: str) -> _Named:
        """Return our replacement of a function; refuse every other name."""
        try:
            return self._replacements[module, name]
        except KeyError:
            raise NotPlainError(f"{module}.{name}") from None

    def _encode(self, text: object, encoding: str = "latin1") -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise TypeError
        return self._raw(text)

    def _scalar(self, dtype: object, content: object) -> object:
        (value,) = self._numbers(content, dtype, ())
        return value

    def _from_buffer(self, content: object, dtype: object, shape: object, _order: object) -> _Array:
        return _Array(self._numbers, self._numbers(content, dtype, shape))

    def _numbers(self, content: object, dtype: object, shape: object) -> list[object]:
        """Return the numbers in an array's bytes; an array of arrays as lists of lists."""
        if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
            raise TypeError
        sizes = [size for size in shape if isinstance(size, int) and size >= 0]
        values = np.frombuffer(self._raw(content), np.dtype(dtype.order + dtype.code))
        if len(sizes) != len(shape) or math.prod(sizes) != len(values) or not len(values):
            return []
        nested: list[object] = values.astype(np.float64).reshape(sizes or [1]).tolist()
        return nested

    def _raw(self, content: object) -> bytes:
        """Return bytes, and count them: a pickle may use the same ones again and again."""
        if not isinstance(content, str | bytes | bytearray):
            raise TypeError
        self._bytes_left -= len(content)
        if self._bytes_left < 0:
            raise NotPlainError(f"more than {MAX_VALUES:,} values")
        return content.encode("latin-1") if isinstance(content, str) else bytes(content)


class _Named:
    """A function as a pickle gets it: it can be called, and its state cannot be changed."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise TypeError


@dataclass(slots=True)
class _Dtype:
    """A type of NumPy's numbers."""

    code: str
    order: str

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.order = {"<": "<", ">": ">", "|": "<"}[str(state[1])]


@dataclass(slots=True)
class _Array:
    """An array; where it was pickled as an object, its numbers come as its state."""

    decode: Callable[[object, object, object], list[object]]
    numbers: list[object] | None = None

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, shape, dtype, _, numbers = state
        self.numbers = numbers if isinstance(numbers, list) else self.decode(numbers, dtype, shape)


def _dtype(code: object, *_: object) -> _Dtype:
    name = str(code)[:8]
    if name.lstrip("<>|=") not in _NUMBER_TYPES:
        raise NotPlainError(f"NumPy's type {name}")
    return _Dtype(name.lstrip("<>|="), ">" if name.startswith(">") else "<")


def _not_callable(*_: object) -> object:
    raise TypeError


class _Plain:
    """Replaces arrays by lists; refuses other objects, and lists that contain themselves."""

    def __init__(self) -> None:
        self._values_left = MAX_VALUES

    def value(self, value: object, depth: int = 0) -> object:
        """Return the value as numbers, texts, lists and dictionaries alone."""
        self._values_left -= 1
        if depth > _MAX_DEPTH or self._values_left < 0:
            raise NotPlainError("endlessly nested lists")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, _Array):
            return self.value(value.numbers, depth + 1)
        if isinstance(value, list | tuple):
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, dict):
            if not all(isinstance(key, str | int | float) for key in value):
                raise NotPlainError("a dictionary whose keys are not strings")
            return {str(key): self.value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, bytes | bytearray):
            return value[:_MAX_TEXT_BYTES].decode("utf-8", "replace")
        raise NotPlainError("a set" if isinstance(value, set | frozenset) else "damaged data")


FORMAT = LogFormat("pickled histories", RecognisedBy.MARK, read_pickled_history, frozenset({".pkl", ".pickle", ".p"}))
