"""Makes templates of pages that need no network and escape every name.

In: the name of a template, and what it may call. Out: the template, which refuses a name that it was not given.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from mlflow_stability.reports.escape import plain


def page_template(name: str, **known: Any) -> Template:
    """The template of this name."""
    environment = Environment(
        loader=PackageLoader("mlflow_stability.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(known)
    return environment.get_template(name)


def _harmless(value: object) -> object:
    """Whatever the template shows of others; what its own macros wrote stays as it is."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
