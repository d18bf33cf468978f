"""Where a run lives: tracking URIs, without the credentials that may stand in them.

In: tracking URIs as people write them. Out: the same store, named without secrets, or absolute. Nothing here connects.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_SECRET = re.compile(r"pass|pwd|token|secret|key|sig|credential|auth", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/\s'\"]+@")
_QUERY_SECRET = re.compile(r"(?i)([?&;][^=&\s]*(?:pass|pwd|token|secret|key|sig|credential|auth)[^=&\s]*=)[^&\s'\"]+")
_SQLITE = re.compile(r"(sqlite(?:\+\w+)?):///(?!/)(.*)")


def strip_credentials(uri: str) -> str:
    """A tracking URI that may be written down: no user, no password, no secret among its options."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    options = [(name, value) for name, value in parse_qsl(parts.query) if not _SECRET.search(name)]
    if host == parts.netloc and len(options) == len(parse_qsl(parts.query)):
        return uri
    return urlunsplit((parts.scheme, host, parts.path, urlencode(options), parts.fragment))


def without_credentials(text: str) -> str:
    """A message in which no URI gives away a user or a password."""
    return _QUERY_SECRET.sub(r"\1…", _USERINFO.sub("", text))


def same_store(one: str, other: str, directory: str = "") -> bool:
    """Whether two tracking URIs name the same store, credentials aside."""
    return _plain(one, directory) == _plain(other, directory)


def is_sqlite(uri: str) -> bool:
    """Whether this is a SQLite file, where every writer makes all others wait."""
    return uri.startswith("sqlite")


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other store."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return None if found is None or found[1] == ":memory:" else Path(found[1])


def absolute_uri(uri: str, directory: str) -> str:
    """A tracking URI that means the same from any working directory."""
    if not directory:
        return uri
    if found := _SQLITE.fullmatch(uri):
        scheme, path = found.groups()
        file, mark, options = path.partition("?")
        return uri if file in ("", ":memory:") else f"{scheme}:///{Path(directory, file)}{mark}{options}"
    if uri.startswith("file:") and not uri.startswith("file:/"):
        return Path(directory, uri.removeprefix("file:")).as_uri()
    if "://" not in uri and not uri.startswith(("file:", "databricks", "uc")):
        return Path(directory, uri).as_uri()
    return uri


def tracking_uri_for(said: str | None, directory: str, given: str | None = None) -> str:
    """The URI to deliver to.

    `said` is what the recording says (without credentials), `given` what the user says now; the environment is asked
    last. One that names the same store as `said` is preferred to it, for it may hold the credentials.
    """
    for known in (given, os.environ.get("MLFLOW_TRACKING_URI")):
        if known and (said is None or same_store(known, said, directory)):
            return absolute_uri(known, directory)
    return absolute_uri(said, directory) if said else default_uri(directory)


def default_uri(directory: str) -> str:
    """Where MLflow itself logs to when nobody said where, seen from a working directory."""
    folder = Path(directory) if directory else Path.cwd()
    if any(folder.glob("mlruns/[0-9]*/meta.yaml")):
        return (folder / "mlruns").as_uri()
    return f"sqlite:///{folder / 'mlflow.db'}"


def _plain(uri: str, directory: str) -> str:
    return absolute_uri(strip_credentials(uri), directory).rstrip("/")
