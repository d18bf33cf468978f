"""Sections of a comparison's report beside its tables and pictures; every format draws these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import PurePath

from mlflow_stability.reports import comparison_phrases as wording
from mlflow_stability.reports.sections import Row, Section, Sign, failures, sentences
from mlflow_stability.vocabulary.result import JUDGED_LIVE, BaselineGate, Cohort, Comparison, RunCard
from mlflow_stability.vocabulary.text.phrases import counted

FEW_GROUPS, FEW_CAUSES, FEW_WORSE, FEW_DIFFERENCES, FEW_UNREAD = 8, 5, 10, 16, 10
"""Rows that a terminal shows without --verbose."""
MAX_CAUSES = 20
MAX_RUN_NAMES, MAX_NOTES = 3, 8
MIN_ID_CHARACTERS = 8
SEEDS_HEAD = ("group", "runs", "final loss", "best loss", "worse than the best")
SEEDS_REMARK = (
    "Interquartile means with 95 % bootstrap intervals, lengthened for few seeds: they can reach beyond the values. A "
    "lost run counts as an infinite loss."
)


@dataclass(frozen=True, slots=True)
class ComparisonSections:
    """In the order of a report; some may be empty."""

    gate: Section
    causes: Section
    first_difference: Section
    layers: Section
    differences: Section
    seeds: Section
    survival: Section
    learning_rate: Section
    associations: Section
    not_checked: Section
    unread: Section
    notes: Section

    def all(self) -> Iterator[Section]:
        return (getattr(self, field.name) for field in fields(self))


def lead(comparison: Comparison) -> str:
    """``lr above 0.1: 15 of 15 unstable; otherwise 0 of 25. Also associated: warmup.``"""
    associations = comparison.cohort.associations if comparison.cohort else ()
    if not associations:
        return ""
    first, *others = associations
    also = ", ".join(" and ".join(other.params) for other in others)
    return f"{first.statement} Also associated: {also}." if also else first.statement


def with_distinct_names(comparison: Comparison) -> Comparison:
    """Return the comparison with a different name for every run: for people, as programs find a run by its source."""
    names = names_of((*comparison.cards, *comparison.unread))
    gate = comparison.gate
    if gate is not None:
        verdicts = (replace(verdict, name=names.get(verdict.source, verdict.name)) for verdict in gate.verdicts)
        gate = replace(gate, name=names.get(gate.baseline, gate.name), verdicts=tuple(verdicts))
    return replace(
        comparison,
        runs=tuple(replace(run, card=_renamed(run.card, names)) for run in comparison.runs),
        unread=tuple(_renamed(card, names) for card in comparison.unread),
        gate=gate,
    )


def names_of(cards: Sequence[RunCard]) -> dict[str, str]:
    """Return a name for each source.

    A name that only one run has stays as it is; runs of the same name each get as much of their id, or of their path,
    as distinguishes them.
    """
    sources_of: dict[str, list[str]] = {}
    for card in cards:
        sources = sources_of.setdefault(card.name or card.source, [])
        if card.source not in sources:
            sources.append(card.source)
    names = {}
    for name, sources in sources_of.items():
        if len(sources) == 1:
            names[sources[0]] = name
            continue
        for source, part in zip(sources, _distinct_parts(sources), strict=True):
            # The name of a log is the end of its path: ``version_0/metrics.csv``.
            names[source] = part if PurePath(part).name == name else f"{name} ({part})"
    return names


def _renamed(card: RunCard, names: Mapping[str, str]) -> RunCard:
    return replace(card, name=names[card.source])


def _distinct_parts(sources: Sequence[str]) -> list[str]:
    """The shortest ends of paths, or beginnings of ids, that are all different."""
    if any(PurePath(source).name != source for source in sources):
        paths = [PurePath(source).parts for source in sources]
        shortened = ([str(PurePath(*path[-count:])) for path in paths] for count in range(1, max(map(len, paths))))
    else:
        counts = range(MIN_ID_CHARACTERS, max(map(len, sources)))
        shortened = ([source[:count] for source in sources] for count in counts)
    return next((parts for parts in shortened if len(set(parts)) == len(parts)), list(sources))


def comparison_sections(comparison: Comparison) -> ComparisonSections:
    cohort = comparison.cohort or Cohort(0, 0)
    return ComparisonSections(
        _gate(comparison.gate) if comparison.gate else Section(""),
        Section("Causes, worst run first", tuple(_causes(comparison)), few=FEW_CAUSES, most=MAX_CAUSES),
        sentences("First difference", (comparison.first_difference.sentence,) if comparison.first_difference else ()),
        Section("Layers compared", tuple(_layers(comparison))),
        _differences(comparison),
        _seeds(cohort),
        Section("Time to divergence", tuple(_survival(cohort))),
        sentences("Learning rate", wording.sensitivity(cohort.sensitivity) if cohort.sensitivity else ()),
        Section("Associated with instability", tuple(_associations(cohort))),
        sentences("Not checked", cohort.cannot_tell),
        failures(((wording.name(card), card.error) for card in comparison.unread), FEW_UNREAD),
        sentences("Notes", _notes(comparison)),
    )


def _gate(gate: BaselineGate) -> Section:
    """Lists every run of a few; of many those that are worse, and the number of the others."""
    worse = [verdict for verdict in gate.verdicts if not verdict.passed]
    passed = [verdict for verdict in gate.verdicts if verdict.passed]
    listed = [*worse, *passed] if len(gate.verdicts) <= FEW_CAUSES else worse
    rows = (
        Row(
            (" ".join(verdict.reasons),),
            verdict.name or verdict.source,
            Sign.PASSED if verdict.passed else Sign.FAILED,
        )
        for verdict in listed
    )
    count = (f"{len(passed)} of {len(gate.verdicts)} not worse.",) if len(worse) == len(listed) and passed else ()
    title = f"Against the baseline {gate.name or gate.baseline}: {'passed' if gate.passed else 'failed'}"
    return Section(title, tuple(rows), few=FEW_WORSE, remarks=(*count, *gate.cannot_tell))


def _causes(comparison: Comparison) -> Iterator[Row]:
    for card in reversed(comparison.cards):
        if card.troubles:
            source = card.source if card.source != card.name else ""
            yield Row((card.verdict, *_statement(card)), wording.name(card), Sign.LABEL, source, card.severity)


def _statement(card: RunCard) -> tuple[str, ...]:
    """The cause, unless the verdict contains it, as it does the origin of a NaN."""
    if not card.cause_statement or card.cause_statement in card.verdict:
        return ()
    return (f"Cause of {card.cause_explains}: {card.cause_statement}" if card.cause_explains else card.cause_statement,)


def _layers(comparison: Comparison) -> Iterator[Row]:
    for beside in comparison.layers:
        difference = wording.layer_difference(beside, wording.two_names(comparison))
        yield Row((difference,), beside.title, Sign.LABEL)


def _differences(comparison: Comparison) -> Section:
    rows = (
        Row((wording.values(difference),), f"{difference.name}{' (tag)' if difference.is_tag else ''}")
        for difference in wording.differences(comparison)
    )
    # The values of a few runs are listed one by one.
    title = "Differences, in the order of the runs" if len(comparison.runs) <= wording.MAX_VALUES else "Differences"
    return Section(title, tuple(rows), ("parameter", "values"), few=FEW_DIFFERENCES)


def _seeds(cohort: Cohort) -> Section:
    groups = wording.repeated(cohort)
    if not groups:
        return Section("")
    rows = []
    for group in groups:
        losses = wording.interval(group.final_loss), wording.interval(group.best_loss)
        rows.append(Row((wording.group_size(group), *losses, wording.p_value(group.p_value)), group.label))
    remarks = tuple(filter(None, (SEEDS_REMARK, wording.not_repeated(cohort))))
    return Section("Over seeds", tuple(rows), SEEDS_HEAD, frozenset(SEEDS_HEAD[2:4]), FEW_GROUPS, remarks=remarks)


def _survival(cohort: Cohort) -> Iterator[Row]:
    if any(curve.lost for curve in cohort.survival):
        for curve in cohort.survival:
            yield Row((wording.survival(curve),), curve.label, Sign.LABEL)


def _associations(cohort: Cohort) -> Iterator[Row]:
    for association in cohort.associations:
        yield Row((wording.association(association),), " / ".join(association.params), Sign.LABEL)
    if no_association := wording.no_association(cohort):
        yield Row((no_association,))
    for warning in (*cohort.confounded, *((wording.CONFOUNDING,) if cohort.associations else ())):
        yield Row((warning,), sign=Sign.WARNING)


def _notes(comparison: Comparison) -> list[str]:
    """Notes on the comparison, and on its runs: each note once, with the runs that it is about."""
    runs_of: dict[str, list[str]] = {}
    for card in comparison.cards:
        for note in card.notes:
            if note != JUDGED_LIVE:
                runs_of.setdefault(note, []).append(wording.name(card))
    notes = [
        f"{', '.join(names) if len(names) <= MAX_RUN_NAMES else counted(len(names), 'run')}: {note}"
        for note, names in runs_of.items()
    ]
    hidden = len(notes) - MAX_NOTES
    more = [f"{counted(hidden, 'more note')} on single runs."] if hidden > 0 else []
    return [*comparison.notes, *notes[:MAX_NOTES], *more]
