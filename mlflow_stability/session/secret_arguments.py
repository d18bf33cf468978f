"""Write down a command line, or the message of an error, without secrets.

`***` replaces what an option, a variable, a field or an address contains. Rather too much is hidden than too little.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise

from mlflow_stability.tracking.address import USERINFO

HIDDEN = "***"
# The words that names are made of: --hf-token, wandb.apiKey, MY_PASSWORD.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = re.compile(
    r"(?:apikey|auth|authorization|credentials?|passphrase|passwd|password|pwd|secret|token"
    r"|^(?:cookie|passcode|pat|sig|signature))$"
)
_INNOCENT_KEYS = frozenset(
    {"batch", "column", "data", "field", "group", "image", "input", "label", "metric", "monitor"}
)
_INNOCENT_KEYS |= {"index", "output", "partition", "primary", "sort", "target", "text", "value"}
"""Keys of these are no secrets; every other key is."""
_ADDRESSES = ["alerts"]  # ``--alerts`` of ``mlflow-stability run``: its URLs contain tokens anywhere
_SHORT = frozenset({"-p"})  # may be a password or a port; a port is a number
_NAME = r"[\w.\-+/\[\]]*[A-Za-z][\w.\-\]]*"
_ASSIGNED = re.compile(rf"(?P<name>{_NAME})(?P<mark>\s*[=:]\s*)(?P<value>.+)", re.DOTALL)
_FIELD = re.compile(
    rf"(?P<quote>['\"])(?P<name>{_NAME})(?P=quote)(?P<mark>\s*:\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^,}}\]\s{{\['\"]+)"
)
_OPTION_OF_URL = re.compile(r"(?P<name>(?<=[?&;])[^=&;\s]+)=(?P<value>[^&;\s'\"]+)")
_SPACES = re.compile(r"(\s+)")
_NUMBER = re.compile(r"[\d.]+")
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.\-+/=]{6,}")
# Keys that show by their form what they are: of OpenAI, Hugging Face, GitHub, GitLab, AWS, Slack, Google; a JWT.
_FORMS = re.compile(
    r"\b(?:sk-[\w\-]{16,}|hf_\w{16,}|gh[oprsu]_\w{16,}|github_pat_\w{16,}|glpat-[\w\-]{16,}|AKIA[A-Z0-9]{12,}"
    r"|xox[abprs]-[\w\-]{8,}|AIza[\w\-]{30,}|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*)"
)


def command_line(words: Sequence[str]) -> str:
    """Return one line that could be typed again, except for secrets."""
    return shlex.join(without_secrets(words))


def without_secrets(words: Iterable[str]) -> list[str]:
    """Hide secrets in words; the value of an option may be the next word."""
    hidden: list[str] = []
    hides_next = short = False
    for word in words:
        is_option = word.startswith("--") or (word.startswith("-") and (len(word) == 2 or not hides_next))
        if hides_next and not is_option:
            hidden.append(word if short and _NUMBER.fullmatch(word) else HIDDEN)
            hides_next = False
            continue
        hidden.append(_without(word))
        short = word in _SHORT
        hides_next = is_option and "=" not in word and (short or is_secret(word))
    return hidden


def message_without_secrets(text: str) -> str:
    """Hide secrets in the message of an error: in addresses, fields and assignments, and what has the form of a key."""
    return "".join(map(_without, _SPACES.split(_without_forms(text))))


def is_secret(name: str) -> bool:
    """Whether a name is one of a secret; ``max_tokens`` and ``tokenizer`` are not."""
    words = [word.lower() for word in _WORD.findall(name)]
    return (
        words == _ADDRESSES
        or any(_SECRET.search(word) for word in words)
        or any(word in ("key", "keys") and before not in _INNOCENT_KEYS for before, word in pairwise(["", *words]))
    )


def _without(word: str) -> str:
    assigned = _ASSIGNED.fullmatch(word)
    if assigned is not None and is_secret(assigned["name"]) and "://" not in assigned["name"] + assigned["mark"]:
        return f"{assigned['name']}{assigned['mark']}{HIDDEN}"
    return _without_forms(word)


def _without_forms(text: str) -> str:
    text = _FIELD.sub(_hide_field, text)
    text = USERINFO.sub(f"{HIDDEN}@", text)
    text = _OPTION_OF_URL.sub(_hide_option, text)
    text = _HEADER.sub(lambda match: f"{match[1]} {HIDDEN}", text)
    return _FORMS.sub(HIDDEN, text)


def _hide_field(match: re.Match[str]) -> str:
    if not is_secret(match["name"]):
        return match[0]
    return f"{match['quote']}{match['name']}{match['quote']}{match['mark']}{match['quote']}{HIDDEN}{match['quote']}"


def _hide_option(match: re.Match[str]) -> str:
    return f"{match['name']}={HIDDEN}" if is_secret(match["name"]) else match[0]
