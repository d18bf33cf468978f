"""`sync`: delivers what journals still hold after a kill, a reboot, or while the server was away.

Looks through a folder: which sessions are in the journals below it, who writes them, who delivers them; delivers
several at once; removes what is no longer needed, where it is asked to.

In: a folder with journals anywhere below it, or one session. Out: a line for each session. Finding them changes nothing
and asks nobody but the files and this machine's list of processes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mlflow_stability.cli.kit.options import journal_argument, journal_root, tracking_uri_option
from mlflow_stability.cli.kit.quantities import Duration, Size
from mlflow_stability.cli.kit.terminal import megabytes, notes_console, result_console
from mlflow_stability.courier.claim import holder_lives
from mlflow_stability.courier.clean_up import clean_up, size_of
from mlflow_stability.courier.deliver import (
    ask_for_short_requests,
    deliver_many,
    deliver_session,
    waiting_bytes,
    waits_for_its_process,
)
from mlflow_stability.courier.progress import read_page
from mlflow_stability.courier.session_delivery import DeliveryReport
from mlflow_stability.courier.training_process import process_of
from mlflow_stability.errors import JournalError, SettingsError, TrackingError
from mlflow_stability.journal.follower import opening_if_readable
from mlflow_stability.journal.layout import (
    RELEASED,
    STATUS,
    is_done,
    is_session,
    journal_roots_below,
    recording_folders,
    session_folders,
)
from mlflow_stability.journal.writer import JOURNAL
from mlflow_stability.tracking.store.address import is_sqlite, same_store, strip_credentials
from mlflow_stability.vocabulary.run import Opening
from mlflow_stability.vocabulary.settings import JOURNAL_FOLDER

JOBS = 4
"""Sessions that are delivered at once: most of the time each of them waits for the server."""


@dataclass(frozen=True, slots=True)
class SessionState:
    """One training process, as its journal shows it."""

    folder: Path
    openings: tuple[Opening, ...]
    """How its recordings began."""
    size: int
    """Bytes of its journals."""
    training_lives: bool
    courier_lives: bool
    trouble: str
    """What the courier said last, if the store is away."""

    @property
    def left_behind(self) -> bool:
        """Nobody delivers it any more."""
        return not self.courier_lives and not self.training_lives


def sessions_in(journal: Path) -> list[SessionState]:
    """The sessions of all journal roots in a folder, or the one session that was named."""
    if is_session(journal):
        return [_state(journal)]
    folders = [each for root in journal_roots_below(journal) for each in session_folders(root) if is_session(each)]
    if (
        not folders
        and journal.is_dir()
        and any(journal.iterdir())
        and not is_done(journal)
        and not journal_roots_below(journal)
    ):
        raise JournalError(
            f"{journal} has no journal of mlflow-stability. Journals are in .mlflow-stability/ where the training "
            "was started, or where MLFLOW_STABILITY_JOURNAL_DIR or autolog(options=Options(journal_dir=...)) says."
        )
    return [_state(each) for each in folders]


def _state(folder: Path) -> SessionState:
    recordings = recording_folders(folder)
    openings = tuple(each for each in map(opening_if_readable, recordings) if each is not None)
    return SessionState(
        folder,
        openings,
        sum(map(_size, recordings)),
        not (folder / RELEASED).exists() and process_of(folder, next(iter(openings), None)).alive(),
        holder_lives(folder),
        str(read_page(folder / STATUS).get("error") or ""),
    )


def _size(recording: Path) -> int:
    try:
        return (recording / JOURNAL).stat().st_size
    except FileNotFoundError:  # its courier has just delivered it
        return 0


@click.command("sync")
@journal_argument
@tracking_uri_option
@click.option(
    "--wait",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to retry while the store does not answer.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="How many sessions are delivered at once. [default: 4; 1 into a SQLite file]",
)
@click.option(
    "--older-than",
    type=Duration(),
    help="Afterwards, remove delivered journals, checkpoints and batches unchanged for so long: 30d, 12h.",
)
@click.option(
    "--max-size",
    type=Size(),
    help="Afterwards, remove such folders until all journals take at most so much, those that changed first: 50GB.",
)
@click.pass_context
def command(
    context: click.Context,
    journal: Path | None,
    tracking_uri: str | None,
    wait: float,
    jobs: int | None,
    older_than: float | None,
    max_size: int | None,
) -> None:
    """Send recorded data that has not reached the tracking server.

    JOURNAL is a journal directory, a folder with journals of many trainings anywhere below it, or one session; without
    it, the journal that autolog() would use here. Nothing is sent twice. A session whose courier is running is skipped.
    After an interruption, the same command continues.

    --tracking-uri is for credentials, which no journal holds: it has to name the store that the training recorded for.

    --older-than and --max-size never remove what was not delivered, nor what a running training needs.
    """
    place = journal or journal_root()
    with notes_console().status(f"Looking for journals in {place} ..."):
        sessions = sessions_in(place)
    if context.get_parameter_source("tracking_uri") is click.core.ParameterSource.COMMANDLINE and tracking_uri:
        _must_be_the_same_store(sessions, tracking_uri)
    ask_for_short_requests()
    out = result_console()
    names, known = _names(sessions, place), {each.folder: each for each in sessions}
    reports: list[DeliveryReport] = []
    waiting = [each for each in sessions if not waits_for_its_process(each.folder)]
    began = time.monotonic()
    try:
        with closing(_reports(waiting, tracking_uri, wait, jobs or _usual_jobs(waiting, tracking_uri), out)) as told:
            for report in told:
                reports.append(report)
                for line in _report_lines(names[report.session], known[report.session], report):
                    out.print(line, soft_wrap=True)
    except KeyboardInterrupt:
        done = sum(not each.remaining and not each.busy for each in reports)
        out.print(
            f"Interrupted: delivered {done} of {len(waiting)}. The same command delivers the rest.", soft_wrap=True
        )
        raise
    for line in _summary_lines(known, reports, len(sessions) - len(waiting), time.monotonic() - began):
        out.print(line, soft_wrap=True)
    errors = [each.error for each in reports if each.error and each.remaining]
    if not sessions:
        why = f"{place} keeps checkpoints and batches alone" if is_done(place) else f"there is no journal in {place}"
        out.print(f"Nothing to deliver: {why}.", soft_wrap=True)
    if older_than is not None or max_size is not None:
        for removed in clean_up(place, older_than, max_size):
            out.print(f"Removed {removed.folder} ({megabytes(removed.size)}).", soft_wrap=True)
        if max_size is not None and (size := size_of(place)) > max_size:
            out.print(
                f"The journals in {place} take {megabytes(size)}: the rest was not delivered, or changed within the "
                "last hour, or a training needs it.",
                soft_wrap=True,
            )
    if errors:
        raise TrackingError(
            f"Not everything could be delivered. {errors[0].rstrip('.')}. What is left is kept in {place}; "
            "run `mlflow-stability sync` again when the store answers."
        )


def _usual_jobs(sessions: list[SessionState], tracking_uri: str | None) -> int:
    """Writers of a SQLite file wait for each other; a server takes several at once."""
    stores = [tracking_uri, *(opening.tracking_uri for each in sessions for opening in each.openings)]
    return 1 if any(is_sqlite(uri) for uri in stores if uri) else JOBS


def _reports(
    sessions: list[SessionState], tracking_uri: str | None, wait: float, jobs: int, out: Console
) -> Generator[DeliveryReport, None, None]:
    """The outcome of each session: one after another in this process, or several at once."""
    left = {each.folder: each.size for each in sessions}
    # Where the results go to a terminal, the bar stays below them.
    with _progress(out if out.is_terminal else notes_console(), sum(left.values())) as show:

        def shown() -> None:
            done = len(sessions) - len(left)
            name = sessions[0].folder.name if len(sessions) == 1 else f"{done} of {len(sessions)} sessions"
            show(name, sum(min(size, waiting_bytes(folder, size)) for folder, size in left.items()))

        if min(jobs, len(sessions)) <= 1:
            for session in sessions:
                report = deliver_session(session.folder, tracking_uri, wait, lambda _: shown())
                left.pop(report.session)
                yield report
        else:
            with closing(deliver_many([each.folder for each in sessions], tracking_uri, wait, jobs)) as several:
                for each in several:
                    if each is not None:
                        left.pop(each.session)
                        yield each
                    shown()


def _names(sessions: list[SessionState], place: Path) -> dict[Path, str]:
    """What each session is called: where its journal is, if there are several journals."""
    roots = Counter(each.folder.parent for each in sessions)
    if len(roots) < 2:
        return {each.folder: each.folder.name for each in sessions}
    names = {}
    for session in sessions:
        root = session.folder.parent
        named = (root.parent if root.name == JOURNAL_FOLDER else root).relative_to(place)
        names[session.folder] = str(named if roots[root] == 1 else named / session.folder.name)
    return names


def _report_lines(name: str, session: SessionState, report: DeliveryReport) -> Iterator[str]:
    """The result of one session's delivery, a line for each fact."""
    if report.busy:
        yield f"{name}: skipped: its courier is delivering it."
        return
    runs = ", ".join(report.run_ids) or "no run"
    if report.delivered or not report.remaining:
        count = f"{report.delivered} recording{'' if report.delivered == 1 else 's'}"
        yield f"{name}: delivered {count} ({megabytes(session.size)}) to {runs}."
    if report.remaining:
        why = (
            "the training is still running"
            if session.training_lives and not report.error
            else report.error or "not all sent"
        )
        yield f"{name}: {megabytes(report.waiting_bytes)} not delivered ({why})."
    if report.refused:
        yield f"{name}: the store refused {', '.join(report.refused)}; the full record has them."


def _summary_lines(
    known: Mapping[Path, SessionState], reports: Sequence[DeliveryReport], kept_before: int, seconds: float
) -> Iterator[str]:
    """Sums up the delivery of all journals."""
    done = [each for each in reports if not each.busy and not each.remaining]
    kept = [each.kept_for for each in reports if each.kept_for]
    if len(known) > 1:
        size = megabytes(sum(known[each.session].size for each in done))
        others = {
            "delivered before": kept_before,
            "not delivered": sum(each.remaining > 0 for each in reports),
            "skipped, for their couriers deliver them": sum(each.busy for each in reports),
        }
        said = "".join(f"; {count} {what}" for what, count in others.items() if count)
        yield f"Delivered {len(done)} of {len(known)} sessions ({size}) in {seconds:.0f} s{said}."
    if len(kept) == len(known) == 1:
        yield (
            f"Its journal is kept: {kept[0]} cannot be asked from here whether it has ended. Run `mlflow-stability "
            "sync` there, delete the folder when it has, or use --older-than."
        )
    elif count := len(kept) + kept_before:
        yield (
            f"Journals kept: {count}. Their processes cannot be asked from here whether they have ended. Run "
            "`mlflow-stability sync` on their machines, delete the folders, or use --older-than."
        )


def _must_be_the_same_store(sessions: list[SessionState], uri: str) -> None:
    for session in sessions:
        for opening in session.openings:
            if opening.tracking_uri is not None and not same_store(uri, opening.tracking_uri, opening.directory):
                raise SettingsError(
                    f"{session.folder.name} was recorded for {opening.tracking_uri}, and {strip_credentials(uri)} is "
                    "another store. Omit --tracking-uri, or give the same store with credentials."
                )


@contextmanager
def _progress(console: Console, size: int) -> Iterator[Callable[[str, int], None]]:
    """A bar that is there while something is sent, on a terminal only: what is sent, and how many bytes are left."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[left]} left"))
    hidden = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=max(1, size), left=megabytes(size))

        def show(what: str, left: int) -> None:
            bar.update(task, description=what, completed=max(0, size - left), left=megabytes(left))

        yield show
