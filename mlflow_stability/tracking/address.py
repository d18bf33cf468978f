"""Tracking URIs: which store they name, and what may be shown of them. Nothing here connects."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_SECRET = re.compile(r"pass|pwd|token|secret|key|sig|credential|auth", re.IGNORECASE)
# A password may have any character as it is, as SQLAlchemy reads it; digits before a slash are a port.
USERINFO = re.compile(r"(?<=://)(?:[^/?#\s'\"]+|[^:/?#\[\s'\"]*:(?!\d*[/?#])[^\s'\"]*)@")
"""User and password in an address."""
_QUERY_SECRET = re.compile(r"(?i)([?&;][^=&\s]*(?:pass|pwd|token|secret|key|sig|credential|auth)[^=&\s]*=)[^&\s'\"]+")
_SQLITE = re.compile(r"(sqlite(?:\+\w+)?):///(?!/)(.*)")


def strip_credentials(uri: str) -> str:
    """Return a tracking URI without user, password and secrets among its options."""
    plain = USERINFO.sub("", uri)
    parts = urlsplit(plain)
    options = [(name, value) for name, value in parse_qsl(parts.query) if not _SECRET.search(name)]
    if len(options) == len(parse_qsl(parts.query)):
        return plain
    return urlunsplit((*parts[:3], urlencode(options), parts.fragment))


def without_credentials(text: str) -> str:
    """Return a message without users and passwords in its URIs."""
    return _QUERY_SECRET.sub(r"\1…", USERINFO.sub("", text))


def same_store(first: str, second: str, directory: str = "") -> bool:
    """Return whether two tracking URIs name the same store, credentials aside."""
    plain = [absolute_uri(strip_credentials(uri), directory).rstrip("/") for uri in (first, second)]
    return plain[0] == plain[1]


def is_sqlite(uri: str) -> bool:
    """Return whether this is a SQLite file, where every writer makes all others wait."""
    return uri.startswith("sqlite")


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for other stores."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return None if match is None or match[1] == ":memory:" else Path(match[1])


def absolute_uri(uri: str, directory: str) -> str:
    """Return a tracking URI that means the same in any working directory."""
    if not directory:
        return uri
    if match := _SQLITE.fullmatch(uri):
        scheme, path = match.groups()
        file, mark, options = path.partition("?")
        return uri if file in ("", ":memory:") else f"{scheme}:///{Path(directory, file)}{mark}{options}"
    if uri.startswith("file:") and not uri.startswith("file:/"):
        return Path(directory, uri.removeprefix("file:")).as_uri()
    if "://" not in uri and not uri.startswith(("file:", "databricks", "uc")):
        return Path(directory, uri).as_uri()
    return uri


def tracking_uri_for(recorded: str | None, directory: str, given: str | None = None) -> str:
    """Return the URI to deliver to.

    `recorded` is that of the recording, without credentials; `given` is the user's; the environment comes last. One
    that names the same store as `recorded` is preferred to it, because it may hold the credentials.
    """
    for uri in (given, os.environ.get("MLFLOW_TRACKING_URI")):
        if uri and (recorded is None or same_store(uri, recorded, directory)):
            return absolute_uri(uri, directory)
    return absolute_uri(recorded, directory) if recorded else default_uri(directory)


def default_uri(directory: str) -> str:
    """Return where MLflow logs by default from a working directory."""
    folder = Path(directory) if directory else Path.cwd()
    if any(folder.glob("mlruns/[0-9]*/meta.yaml")):
        return (folder / "mlruns").as_uri()
    return f"sqlite:///{folder / 'mlflow.db'}"
