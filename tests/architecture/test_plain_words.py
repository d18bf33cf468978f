"""What a person reads uses the terms of PyTorch, MLflow and statistics, and no figures of speech.

Users read string literals that are words, docstrings that ``help()`` or the command line shows, templates, the manual
and the README. Contributors also read private docstrings, comments, names, and the names of tests.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from architecture.repository import PACKAGE, ROOT, nodes_of, python_files, tree_of

import mlflow_stability


@dataclass(frozen=True)
class Banned:
    """A pattern, what is written instead, and a sentence that the pattern finds."""

    pattern: str
    plain: str
    example: str


BANNED = (
    Banned(r"\bleap(?:s|t|ed|ing)?\b", "jump, jumped", "The loss leapt from 1.28 to 9."),
    Banned(r"\bwidths? of (?:its|the|their) noise\b", "σ above its baseline", "18.8 widths of its noise"),
    Banned(r"\bsets? back\b", "rolled back", "Let the training be set back."),
    Banned(r"\b(?:stands?|stood)\b(?! for\b|-)", "is, was", "The loss stood high in 12 of 16."),
    Banned(r"\bbec(?:a|o)me of\b", "result, outcome", "what became of it"),
    Banned(r"\bin vain\b", "without effect", "It was tried in vain."),
    Banned(r"(?<!duty )(?<!duty-)(?<!reference )(?<!import )\bcycles?\b", "step", "once in each cycle"),
    Banned(r"\bhearts?\b", "overfitting", "It learns its training data by heart."),
    Banned(r"\beyes?\b", "detects", "the eye on the settings"),
    Banned(r"\bhands\b|\bat hand\b", "returns, passes", "It hands the step over."),
    Banned(r"\bpens?\b", "writer", "the pen of the journal"),
    Banned(r"\bdice\b", "random numbers", "No dice are thrown."),
    Banned(r"(?<!CI )(?<!baseline )\bgates?\b", "CI gate, baseline gate", "the one at the gate"),
    Banned(r"\bthe limit is\b", "threshold 8σ", "the limit is 12.0"),
    Banned(r"\ba training that was sound\b", "the step before was normal", "out of a training that was sound"),
    Banned(r"\bfor its loss or gradients were\b|\babsurd\b", "non-finite loss or gradients", "or absurd"),
    Banned(r"\blet the training be\b", "enable rollback=True", "Let the training be set back."),
    Banned(r"\bgo back to\b", "restart from a checkpoint before step N", "Go back to a state from before it."),
    Banned(r"\blook at the batch\b", "inspect the batch", "Look at the batch of this step."),
    Banned(r"\bmend(?:s|ed|ing)?\b", "fix", "Mend the cause."),
    Banned(r"\bnothing above INFO\b", "no warnings", "nothing above INFO"),
    Banned(
        r"\b(?:could not|cannot) be told\b|\bis not told\b|\bnothing is told\b",
        "not checked, not reported",
        "What could not be told",
    ),
    Banned(r"\bnot seen:", "no data:", "Not seen: attention"),
    Banned(r"\bnot it:", "ruled out:", "Not it: bad batch"),
    Banned(r"\bas a sum does\b|\bnever cleared\b", "missing zero_grad()", "did not grow as a sum does"),
    Banned(r"\bit (?:killed|out of memory)\b", "the process was killed", "It killed: step 4"),
    Banned(r"\bbouncy\b", "not monotone", "rising, smooth, bouncy"),
    Banned(r"\bcarry nothing\b", "check labels, inputs, learning rate", "inputs that carry nothing"),
    Banned(r"\bhardly ever\b", "rarely", "hardly ever more than 0.01"),
    Banned(r"\bfp16 scale \(", "fp16 gradient overflow (", "fp16 scale (likely)"),
    Banned(r"\bunstable were\b", "7 of 7 unstable", "Unstable were 7 of 7 with lr above 0.0155"),
    Banned(r"\bare not lost within\b", "survive 200 steps", "71 % are not lost within 200 steps"),
    Banned(r"\bgo(?:es)? with instability\b", "is associated with instability", "What goes with instability"),
    Banned(r"\bfirst common step, 0, on\b", "differs from step 0", "from the first common step, 0, on"),
    Banned(r"\bhad nothing of the kind\b", "baseline had no finding this severe", "had nothing of the kind as bad"),
    Banned(r"\bwasted\b|\bundone\b", "lost steps, rolled back", "| wasted |"),
    Banned(r"\bis known to go into\b", "unknown output format", "nothing is known to go into .jsonl files"),
    Banned(r"\bnobody\b", "nothing, no process", "nobody's business but ours"),
    Banned(r"\bthe ones? who\b", "name the object", "the one who knows the others"),
    Banned(r"(?<!there )\b(?:is|are) no\b(?! longer)", "is not a", "'x' is no file or folder here"),
)
RIGHT_IN_CODE = {"is not a", "lost steps, rolled back", "restart from a checkpoint before step N", "threshold 8σ"}
"""What is written instead of patterns that are plain where contributors read: "undone", "go back to", "is no"."""
BANNED_IN_CODE = (
    *(rule for rule in BANNED if rule.plain not in RIGHT_IN_CODE),
    Banned(r"\bwhat has been seen\b", "name the state, or nothing", "What has been seen so far."),
    Banned(r"\banew\b", "again", "It is read anew."),
    Banned(r"\bborn\b", "created, first non-finite", "the layer in which a NaN was born"),
    Banned(r"\bsomebody\b", "name who", "Somebody set it."),
    Banned(r"\bset back\b", "rolled back", "It was set back to step 4."),
    Banned(r"(?<!there )\b(?:is|are) (?-i:none)\b", "there is no, None", "a group that is none of ours"),
    Banned(r"\bso many\b", "number of", "after so many steps"),
    Banned(r"\btold\b", "reported, passed", "It is told of the step."),
    Banned(r"\bsaid\b", "logged, reported", "what was said"),
    Banned(r"\bfrom which on\b|^By which\b", "rephrase", "the step from which on it fell"),
    Banned(r"\bcan do at most\b", "peak", "what a device can do at most"),
    Banned(r"\bas good as\b", "almost", "as good as full"),
    Banned(r"\bno (?:word|sign) of\b", "no", "There was no word of it."),
    Banned(r"^Says (?:when|whether|what|that|how)\b", "detect, return", "Says when the loss diverges."),
)
"""What private docstrings, comments and names of tests have none of either."""
BANNED_NAMES = frozenset({"each", "said", "told", "found", "known", "one"})
"""Names of variables and arguments that do not say what they hold."""
UNCLEAN_TESTS: frozenset[str] = frozenset()
"""Folders in which the names of tests are not yet plain."""
ONE_WORD = re.compile(r"[A-Za-z]+[.:!?]?")
"""Such a string may be a word on its own: the heading of a column, a state."""
NAMES = frozenset({"gate", "dice", "undone"})
"""Names in data: a key of the comparison's JSON, a score of image segmentation, a threshold of old recordings."""
MOST_WORDS = 25
IN_SHORT_SENTENCES = ("analysis", "cli", "errors.py", "importers", "reports")
"""Rooms whose sentences are short; a semicolon or a colon ends one as well."""
EXPLAINED = ("kinds", "diagnosis/causes")
"""Folders whose classes' docstrings `mlflow-stability explain` prints."""
RECORDED = re.compile(r"^```console\n.*?^```$", re.MULTILINE | re.DOTALL)
"""What a command printed of a recorded run: its findings have the words of the version that recorded it."""
TEMPLATE_CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}")
EXAMPLE = re.compile(r"^Example:\n\n(?: {4}.*\n?)+", re.MULTILINE)
"""Code in a docstring, which `tests/manual/test_docstring_examples.py` runs."""
TEST_NAME = re.compile(r"^ *def (test_\w+)", re.MULTILINE)
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def rooms() -> list[str]:
    folders = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    return [*sorted(folders), *(path.name for path in sorted(PACKAGE.glob("*.py"))), "README.md"]


def documents_of(room: str) -> list[Path]:
    if room == "README.md":
        return [ROOT / room]
    return sorted(path for path in (PACKAGE / room).rglob("*") if path.suffix in {".md", ".html"})


def shown_docstrings(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of public names, of commands, and of what `explain` explains."""
    room = path.relative_to(PACKAGE).with_suffix("")
    module = ".".join(("mlflow_stability", *room.parts))
    public = {name for name, home in mlflow_stability.PUBLIC.items() if home == module}
    explained = str(room).startswith(EXPLAINED)
    for node in tree.body:
        if not isinstance(node, DOCUMENTED):
            continue
        is_command = any(ast.unparse(item).startswith("click.command(") for item in node.decorator_list)
        if node.name in public or is_command or (explained and isinstance(node, ast.ClassDef)):
            members = node.body if isinstance(node, ast.ClassDef) and node.name in public else []
            for entry in (node, *members):
                if isinstance(entry, DOCUMENTED) and (entry is node or not entry.name.startswith("_")):
                    yield entry.lineno, EXAMPLE.sub("", ast.get_docstring(entry) or "")


def are_words(value: object) -> bool:
    """Whether it may be read by a person: a sentence, or a word that is not a name in data."""
    return isinstance(value, str) and (" " in value or (ONE_WORD.fullmatch(value) is not None and value not in NAMES))


def literals(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """String literals that are words, without docstrings; of f-strings also the whole, with … for its values."""
    silent = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    silent |= {id(value) for node in nodes if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (str(value.value) if isinstance(value, ast.Constant) else "…" for value in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and id(node) not in silent and are_words(node.value):
            yield node.lineno, str(node.value)


def test_a_phrase_is_found_where_a_value_parts_it_and_a_comment_is_not_read() -> None:
    tree = ast.parse(
        '"""A leap."""\n# a leap\nx = f"it {x} leapt"\ny = ["leapt", "a_leap", f"in {\'a heart\'} vain"]\n'
    )
    assert [text for _, text in literals(list(ast.walk(tree)))] == ["it … leapt", "leapt", "in … vain", "a heart"]


@cache
def texts_of(room: str) -> list[tuple[str, int, str]]:
    """What a person reads from a room, with its file and line."""
    texts = []
    files = [PACKAGE / room] if room.endswith(".py") else python_files(PACKAGE / room)
    for path in [] if room == "README.md" else files:
        for line, text in (*literals(nodes_of(path)), *shown_docstrings(path, tree_of(path))):
            texts.append((str(path.relative_to(ROOT)), line, text))
    for path in documents_of(room):
        result = RECORDED.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
        for line, text in enumerate(result.splitlines(), start=1):
            texts.append((str(path.relative_to(ROOT)), line, TEMPLATE_CODE.sub("…", text)))
    return texts


@cache
def any_of(banned: tuple[Banned, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{rule.pattern})" for rule in banned), re.IGNORECASE)


def faults_in(text: str, banned: tuple[Banned, ...] = BANNED) -> Iterator[str]:
    text = " ".join(text.split())
    if not any_of(banned).search(text):
        return
    for rule in banned:
        match = re.search(rule.pattern, text, re.IGNORECASE)
        if match:
            yield f"{match[0]!r}: write {rule.plain!r}"


@pytest.mark.parametrize("banned", BANNED_IN_CODE, ids=lambda banned: banned.plain)
def test_each_banned_pattern_finds_its_own_example_and_not_the_plain_words(banned: Banned) -> None:
    assert re.search(banned.pattern, banned.example, re.IGNORECASE)
    assert list(faults_in(banned.plain, BANNED_IN_CODE)) == []


def bound_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Names of variables and arguments."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def texts_of_code(source: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Docstrings, those of attributes included, and comments."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def faults_of_code(paths: Iterable[Path], names: frozenset[str]) -> list[str]:
    faults = []
    for path in paths:
        nodes = nodes_of(path)
        lines = [(line, f"a name {name!r}") for line, name in bound_names(nodes) if name in names]
        for line, text in texts_of_code(path.read_text(encoding="utf-8"), nodes):
            lines += [(line, fault) for fault in faults_in(text, BANNED_IN_CODE)]
        faults += [f"{path.relative_to(ROOT)}:{line}: {fault}" for line, fault in lines]
    return faults


def faults_of_tests(folder: str) -> list[str]:
    faults = []
    for path in python_files(ROOT / "tests" / folder):
        for name in TEST_NAME.findall(path.read_text(encoding="utf-8")):
            texts = faults_in(name.replace("_", " "), BANNED_IN_CODE)
            faults += [f"{path.relative_to(ROOT)}: {name}: {fault}" for fault in texts]
    return faults


def unless_listed(places: list[str], listed: frozenset[str]) -> list[Any]:
    """Expect a failure in places that are listed; pytest's summary shows those that pass by now."""
    not_yet = pytest.mark.xfail(reason="not yet plain")
    return [pytest.param(place, marks=[not_yet] if place in listed else []) for place in places]


def folders_of_tests() -> list[str]:
    return sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and python_files(path))


def test_names_comments_and_docstrings_of_attributes_are_read() -> None:
    source = 'said, (told, *rest) = 1, (2,)\n"""What it is."""\nfor each in (): pass  # why\nlambda one: one\n'
    nodes = list(ast.walk(ast.parse(source)))
    assert BANNED_NAMES & {name for _, name in bound_names(nodes)} == {"said", "told", "each", "one"}
    assert [text for _, text in texts_of_code(source, nodes)] == ["What it is.", "# why"]


@pytest.mark.parametrize("room", [room for room in rooms() if room != "README.md"])
def test_contributors_read_plain_words_and_names_that_say_what_they_hold(room: str) -> None:
    paths = [PACKAGE / room] if room.endswith(".py") else python_files(PACKAGE / room)
    assert faults_of_code(paths, BANNED_NAMES) == []


@pytest.mark.parametrize("folder", folders_of_tests())
def test_tests_have_plain_words_and_names_that_say_what_they_hold(folder: str) -> None:
    assert faults_of_code(python_files(ROOT / "tests" / folder), BANNED_NAMES) == []


@pytest.mark.parametrize("folder", unless_listed(folders_of_tests(), UNCLEAN_TESTS))
def test_names_of_tests_are_plain(folder: str) -> None:
    faults = faults_of_tests(folder)
    assert faults == []


def test_text_is_read_from_literals_docstrings_templates_and_pages() -> None:
    by_room = {room: [text for _, _, text in texts_of(room)] for room in rooms()}
    assert "log scale" in " ".join(by_room["reports"])
    assert "<h1>" in " ".join(by_room["reports"])
    assert any(item.startswith("Explain a finding") for item in by_room["cli"])
    assert any("What it sees: a loss at least" in kind for kind in by_room["kinds"])
    assert any(item.startswith("Record every step") for item in by_room["session"])
    assert any(item.startswith("# mlflow-stability") for item in by_room["README.md"])
    assert any(item.startswith("needs PyTorch") for item in by_room["errors.py"])


@pytest.mark.parametrize("room", rooms())
def test_what_people_read_has_plain_words(room: str) -> None:
    faults = [f"{path}:{line}: {fault}" for path, line, text in texts_of(room) for fault in faults_in(text)]
    assert faults == []


@pytest.mark.parametrize("room", IN_SHORT_SENTENCES)
def test_sentences_have_at_most_25_words(room: str) -> None:
    texts = [(path, line, text) for path, line, text in texts_of(room) if path.endswith(".py") and "\\" not in text]
    sentences = [(path, line, word) for path, line, text in texts for word in re.split(r"[.!?;:](?:\s+|$)", text)]
    assert len(sentences) > 5
    assert [sentence for sentence in sentences if len(re.findall(r"[^\W\d_]{2,}", sentence[2])) > MOST_WORDS] == []
