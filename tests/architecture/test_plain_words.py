"""What a person reads uses the terms of PyTorch, MLflow and statistics, and no figures of speech.

Read: string literals that are words, docstrings that ``help()`` or the command line shows, templates, the manual
and the README. Comments and internal docstrings are not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from architecture.repository import PACKAGE, ROOT, python_files, tree_of

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
    Banned(r"\btree guesses\b|\balways saying\b", "decision tree 96 % (majority class 71 %)", "A tree guesses 96 %"),
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
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def rooms() -> list[str]:
    folders = [each.name for each in PACKAGE.iterdir() if (each / "__init__.py").exists()]
    return [*sorted(folders), *(each.name for each in sorted(PACKAGE.glob("*.py"))), "README.md"]


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
        is_command = any(ast.unparse(each).startswith("click.command(") for each in node.decorator_list)
        if node.name in public or is_command or (explained and isinstance(node, ast.ClassDef)):
            members = node.body if isinstance(node, ast.ClassDef) and node.name in public else []
            for each in (node, *members):
                if isinstance(each, DOCUMENTED) and (each is node or not each.name.startswith("_")):
                    yield each.lineno, EXAMPLE.sub("", ast.get_docstring(each) or "")


def are_words(value: object) -> bool:
    """Whether it may be read by a person: a sentence, or a word that is not a name in data."""
    return isinstance(value, str) and (" " in value or (ONE_WORD.fullmatch(value) is not None and value not in NAMES))


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String literals that are words, without docstrings; of f-strings also the whole, with … for its values."""
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    silent |= {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and id(node) not in silent and are_words(node.value):
            yield node.lineno, str(node.value)


def test_a_phrase_is_found_where_a_value_parts_it_and_a_comment_is_not_read() -> None:
    tree = ast.parse(
        '"""A leap."""\n# a leap\nx = f"it {x} leapt"\ny = ["leapt", "a_leap", f"in {\'a heart\'} vain"]\n'
    )
    assert [text for _, text in literals(tree)] == ["it … leapt", "leapt", "in … vain", "a heart"]


def texts_of(room: str) -> Iterator[tuple[str, int, str]]:
    """What a person reads from a room, with its file and line."""
    files = [PACKAGE / room] if room.endswith(".py") else python_files(PACKAGE / room)
    for path in [] if room == "README.md" else files:
        tree = tree_of(path)
        for line, text in (*literals(tree), *shown_docstrings(path, tree)):
            yield str(path.relative_to(ROOT)), line, text
    for path in documents_of(room):
        said = RECORDED.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
        for line, text in enumerate(said.splitlines(), start=1):
            yield str(path.relative_to(ROOT)), line, TEMPLATE_CODE.sub("…", text)


def faults_in(text: str) -> Iterator[str]:
    for each in BANNED:
        found = re.search(each.pattern, " ".join(text.split()), re.IGNORECASE)
        if found:
            yield f"{found[0]!r}: write {each.plain!r}"


@pytest.mark.parametrize("banned", BANNED, ids=lambda each: each.plain)
def test_each_banned_pattern_finds_its_own_example_and_not_the_plain_words(banned: Banned) -> None:
    assert re.search(banned.pattern, banned.example, re.IGNORECASE)
    assert list(faults_in(banned.plain)) == []


def test_text_is_read_from_literals_docstrings_templates_and_pages() -> None:
    said = {room: [text for _, _, text in texts_of(room)] for room in rooms()}
    assert "log scale" in " ".join(said["reports"])
    assert "<h1>" in " ".join(said["reports"])
    assert any(each.startswith("Explain a finding") for each in said["cli"])
    assert any("What it sees: a loss at least" in each for each in said["kinds"])
    assert any(each.startswith("Record every step") for each in said["session"])
    assert any(each.startswith("# mlflow-stability") for each in said["README.md"])
    assert any(each.startswith("needs PyTorch") for each in said["errors.py"])


@pytest.mark.parametrize("room", rooms())
def test_what_people_read_has_plain_words(room: str) -> None:
    faults = [f"{path}:{line}: {fault}" for path, line, text in texts_of(room) for fault in faults_in(text)]
    assert faults == []


@pytest.mark.parametrize("room", IN_SHORT_SENTENCES)
def test_sentences_have_at_most_25_words(room: str) -> None:
    texts = [(path, line, text) for path, line, text in texts_of(room) if path.endswith(".py") and "\\" not in text]
    sentences = [(path, line, each) for path, line, text in texts for each in re.split(r"[.!?;:](?:\s+|$)", text)]
    assert len(sentences) > 5
    assert [each for each in sentences if len(re.findall(r"[^\W\d_]{2,}", each[2])) > MOST_WORDS] == []
