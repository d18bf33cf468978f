"""Tells a report of ours, which may lie beside the logs that it is about, from a log.

In: the first bytes of a file. Out: whether it is a JSON or CSV that `diagnose` or `compare` wrote. Promised: a log with
a column called `source` or `rank` is not taken for one.
"""

from __future__ import annotations

import re

_JSON = re.compile(rb'\s*\{\s*"schema_version":\s*\d+,\s*"summary":')
_CSV = (b"source,name,outcome,step,issue_type,severity,", b"rank,source,name,outcome,severity,verdict,")


def is_own_report(head: bytes) -> bool:
    """Whether a file that begins like this is a report."""
    return head.startswith(_CSV) or _JSON.match(head) is not None
