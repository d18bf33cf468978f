"""Turns what Python prints of a dictionary or a list into JSON: ``{'loss': [0.5, nan], 'lr': np.float64(0.1)}``.

In: text. Out: the same in JSON, as far as that goes; whether it is some, the JSON parser says. Guarantees: nothing is
evaluated, and time and memory are linear in the text.
"""

from __future__ import annotations

import json
import re

_NUMBER = re.compile(r"\b(?:(?:np|numpy|jnp|torch|tf)\.)?(?:float|int|uint|bfloat|longlong)\d*\(([^()\[\]]*)\)")
_TENSOR = re.compile(r"\b(?:tf\.)?[Tt]ensor\(([^,()\[\]]*)[^()]*\)|<tf\.Tensor: [^<>]*?numpy=([^<>,\[\]]*)>")
_ARRAY = re.compile(r"\b(?:(?:np|numpy|jnp|torch)\.)?(?:array|Array|tensor)\((\[[^()]*\])[^()\[\]]*\)")
_DEFAULTS = re.compile(r"\s*(?:collections\.)?defaultdict\(<class '\w+'>, (\{.*\})\)\s*", re.DOTALL)
_TOKEN = re.compile(
    r"""[uUbBrR]?'((?:[^'\\\n]|\\.)*)'?   # a text in single quotes; one that is never closed ends with its line
    |[uUbBrR]?("(?:[^"\\\n]|\\.)*"?)      # one in double quotes
    |(-?\b(?:nan|inf)\b|\b(?:None|True|False)\b)
    |([()])""",
    re.VERBOSE,
)
_WORDS = {"None": "null", "True": "true", "False": "false", "nan": "NaN", "-nan": "NaN", "inf": "Infinity"}
_NUMBER_AS_KEY = re.compile(r"([{,]\s*)(-?\d+)(?=\s*:)")
_BARE_POINT = re.compile(r"(?<![\w.])(\d+)\.(?=[\s,\])}e])")
_COMMA_AT_END = re.compile(r",(\s*[\]}])")


def as_json(text: str) -> str:
    """The text as JSON."""
    if "(" in text:
        whole = _DEFAULTS.fullmatch(text)
        text = _NUMBER.sub(r"\1", text if whole is None else whole[1])
        text = _TENSOR.sub(lambda found: found[1] or found[2] or "null", _ARRAY.sub(r"\1", text))
    text = _BARE_POINT.sub(r"\1.0", text)
    return _COMMA_AT_END.sub(r"\1", _NUMBER_AS_KEY.sub(r'\1"\2"', _TOKEN.sub(_token, text)))


def _token(found: re.Match[str]) -> str:
    single, double, word, mark = found.groups()
    if single is not None:
        return json.dumps(single.replace("\\'", "'"), ensure_ascii=False)
    if double is not None:
        return str(double)
    return _WORDS.get(word, "-Infinity") if word is not None else "[" if mark == "(" else "]"
