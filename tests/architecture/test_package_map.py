"""The table of sub-packages in the package's README repeats the first sentence of each.

``python tests/architecture/test_package_map.py`` brings the table up to date.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from architecture.repository import PACKAGE, tree_of

README = PACKAGE / "README.md"
HEAD = "| sub-package | what is in it |\n| --- | --- |\n"
MAX_ROWS = 40
MAX_TERMS = 20


def table() -> str:
    """A row for each sub-package, in the order of their names."""
    rows = [
        f"| `{path.parent.name}/` | {(ast.get_docstring(tree_of(path)) or '').splitlines()[0]} |\n"
        for path in sorted(PACKAGE.glob("*/__init__.py"))
    ]
    return HEAD + "".join(rows)


def with_table(text: str) -> str:
    """The text with its table brought up to date."""
    return re.sub(re.escape(HEAD) + r"(?:\|.*\n)*", lambda _: table(), text)


def test_the_map_says_of_each_sub_package_what_it_says_of_itself() -> None:
    text = README.read_text(encoding="utf-8")
    assert HEAD in text
    assert with_table(text) == text, "python tests/architecture/test_package_map.py brings it up to date"


def test_every_path_that_the_map_names_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py|/))`", README.read_text(encoding="utf-8")))
    assert named
    assert [
        path for path in sorted(named) if not any((root / path).exists() for root in (PACKAGE, PACKAGE.parent))
    ] == []


def test_the_map_has_at_most_forty_lines_and_the_glossary_twenty_terms() -> None:
    text = README.read_text(encoding="utf-8")
    tables = re.search(r"## Sub-packages\n(.*?)\n## Layers", text, re.DOTALL)
    glossary = re.search(r"## Glossary\n(.*?)\n## ", text, re.DOTALL)
    assert tables
    assert glossary
    assert 30 <= tables[1].count("\n| ") - 4 <= MAX_ROWS
    assert 10 <= glossary[1].count("\n- **") <= MAX_TERMS


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
