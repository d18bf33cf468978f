"""Puts a section of ours into the description of a run, and keeps it up to date there.

In: a description and a section. Out: the description with the section in place of the one before, else behind what the
user wrote. Guarantees: what the user wrote stays as it is, before the section and behind it; where both do not fit into
what MLflow takes, the section gives way.
"""

from __future__ import annotations

import re

HEADING = "### Training stability: "
"""How the section begins; its first line goes on with one or a few words."""
END = "*Kept up to date by mlflow-stability.*"
"""How it ends."""
LONGEST = 8000
"""What MLflow's stores keep of a description."""
_SECTION = re.compile(rf"^{re.escape(HEADING)}.*?^{re.escape(END)}$", re.DOTALL | re.MULTILINE)


def section_of(headline: str, paragraphs: list[str]) -> str:
    """A section with this heading."""
    return "\n\n".join([HEADING + headline, *(each for each in paragraphs if each), END])


def with_section(description: str, section: str) -> str:
    """The description with the section in it; the shortest form of it where there is no room for all."""
    paragraphs = section.split("\n\n")
    while True:
        text = _joined(description, "\n\n".join(paragraphs))
        if len(text) <= LONGEST:
            return text
        if len(paragraphs) <= 2:
            return description
        del paragraphs[-2]


def _joined(description: str, section: str) -> str:
    found = _SECTION.search(description)
    if found is not None:
        return description[: found.start()] + section + description[found.end() :]
    return f"{description.rstrip()}\n\n{section}" if description.strip() else section
