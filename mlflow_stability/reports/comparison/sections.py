"""Sections of a comparison's report beside its tables and pictures; every format draws these.

In: a `Comparison` whose runs have different names. Out: `ComparisonSections`. Guarantees: the same comparison gives the
same sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from mlflow_stability.reports.sections import Row, Section, Sign, failures, sentences
from mlflow_stability.reports.words import comparison_phrases as wording
from mlflow_stability.reports.words import layer_phrases as layers_wording
from mlflow_stability.reports.words.comparison_summary import notes
from mlflow_stability.vocabulary.result import BaselineGate, Cohort, Comparison, RunCard

FEW_GROUPS, FEW_CAUSES, FEW_WORSE, FEW_DIFFERENCES, FEW_UNREAD = 8, 5, 10, 16, 10
MOST_CAUSES = 20
SEEDS_HEAD = ("group", "runs", "final loss", "best loss", "worse than the best")
SEEDS_REMARK = "Interquartile means with 95 % bootstrap intervals; a lost run counts as an infinite loss."


@dataclass(frozen=True, slots=True)
class ComparisonSections:
    """In the order in which they are shown; those that say nothing are empty."""

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
        """Each of them."""
        return (getattr(self, each.name) for each in fields(self))


def comparison_sections(comparison: Comparison) -> ComparisonSections:
    """The sections of one comparison."""
    cohort = comparison.cohort or Cohort(0, 0)
    return ComparisonSections(
        _gate(comparison.gate) if comparison.gate else Section(""),
        Section("Causes, worst run first", tuple(_causes(comparison)), few=FEW_CAUSES, most=MOST_CAUSES),
        sentences("First difference", (comparison.first_difference.sentence,) if comparison.first_difference else ()),
        Section(layers_wording.SECTION, tuple(_layers(comparison))),
        _differences(comparison),
        _seeds(cohort),
        Section("Time to divergence", tuple(_survival(cohort))),
        sentences("Learning rate", wording.sensitivity(cohort.sensitivity) if cohort.sensitivity else ()),
        Section("Associated with instability", tuple(_associations(cohort))),
        sentences("Not checked", cohort.cannot_tell),
        failures(((wording.name(card), card.error) for card in comparison.unread), FEW_UNREAD),
        sentences("Notes", notes(comparison)),
    )


def _gate(gate: BaselineGate) -> Section:
    """Runs that are worse, one by one; of many that are not, their number."""
    worse = [each for each in gate.verdicts if not each.passed]
    passed = [each for each in gate.verdicts if each.passed]
    listed = [*worse, *passed] if len(gate.verdicts) <= FEW_CAUSES else worse
    rows = (
        Row((" ".join(each.reasons),), each.name or each.source, Sign.PASSED if each.passed else Sign.FAILED)
        for each in listed
    )
    count = (f"{len(passed)} of {len(gate.verdicts)} not worse.",) if len(worse) == len(listed) and passed else ()
    title = f"Against the baseline {gate.name or gate.baseline}: {'passed' if gate.passed else 'failed'}"
    return Section(title, tuple(rows), few=FEW_WORSE, remarks=(*count, *gate.cannot_tell))


def _causes(comparison: Comparison) -> Iterator[Row]:
    for card in reversed(comparison.cards):
        if card.troubles:
            yield Row((card.verdict, *_statement(card)), wording.name(card), Sign.LABEL, _source(card), card.severity)


def _statement(card: RunCard) -> tuple[str, ...]:
    """The cause, unless the verdict says it: as where the first NaN comes from."""
    if not card.cause_statement or card.cause_statement in card.verdict:
        return ()
    return (f"Cause of {card.cause_explains}: {card.cause_statement}" if card.cause_explains else card.cause_statement,)


def _source(card: RunCard) -> str:
    """The id or path that `diagnose` takes, where the name is another."""
    return card.source if card.source != card.name else ""


def _layers(comparison: Comparison) -> Iterator[Row]:
    for each in comparison.layers:
        said = layers_wording.sentences(each, wording.two_names(comparison))
        yield Row((said,), layers_wording.title(each), Sign.LABEL)


def _differences(comparison: Comparison) -> Section:
    rows = (
        Row((wording.values(each),), f"{each.name}{' (tag)' if each.is_tag else ''}")
        for each in wording.differences(comparison)
    )
    return Section(wording.differs_title(comparison), tuple(rows), ("parameter", "values"), few=FEW_DIFFERENCES)


def _seeds(cohort: Cohort) -> Section:
    groups = wording.repeated(cohort)
    if not groups:
        return Section("")
    rows = (
        Row(
            (
                wording.group(each),
                wording.interval(each.final_loss),
                wording.interval(each.best_loss),
                wording.p_value(each.p_value),
            ),
            each.label,
        )
        for each in groups
    )
    left_out = wording.not_repeated(cohort)
    remarks = (SEEDS_REMARK, *((left_out,) if left_out else ()))
    return Section("Over seeds", tuple(rows), SEEDS_HEAD, frozenset(SEEDS_HEAD[2:4]), FEW_GROUPS, remarks=remarks)


def _survival(cohort: Cohort) -> Iterator[Row]:
    if any(each.lost for each in cohort.survival):
        for each in cohort.survival:
            yield Row((wording.survival(each),), each.label, Sign.LABEL)


def _associations(cohort: Cohort) -> Iterator[Row]:
    for each in cohort.associations:
        yield Row((wording.association(each),), " / ".join(each.params), Sign.LABEL)
    if none := wording.no_association(cohort):
        yield Row((none,))
    if cohort.tree is not None and (cohort.associations or cohort.tree.better):
        yield Row((wording.tree(cohort.tree),))
        if cohort.tree.better:
            yield from (Row((rule,), sign=Sign.LABEL) for rule in cohort.tree.rules)
    for said in (*cohort.confounded, *((wording.CONFOUNDING,) if cohort.associations else ())):
        yield Row((said,), sign=Sign.WARNING)
