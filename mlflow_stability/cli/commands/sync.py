"""`sync`: deliver what journals still hold after a kill, a reboot, or while the server was away.

Looks for sessions in all journals below a folder, delivers several at once, and removes old journals on request. The
search changes nothing, and uses only the files and this machine's list of processes.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mlflow_stability.cli.options import journal_root, tracking_uri_option
from mlflow_stability.cli.output import megabytes, notes_console, result_console
from mlflow_stability.courier.deliver import (
    DeliveryReport,
    ask_for_short_requests,
    clean_up,
    deliver_many,
    deliver_session,
    size_of,
    waiting_bytes,
    waits_for_its_process,
)
from mlflow_stability.courier.processes import holder_lives, process_of
from mlflow_stability.errors import JournalError, SettingsError, TrackingError
from mlflow_stability.journal.journal import journal_size, opening_if_readable
from mlflow_stability.journal.layout import (
    RELEASED,
    STATUS,
    is_done,
    is_session,
    journal_roots_below,
    read_page,
    recording_folders,
    session_folders,
)
from mlflow_stability.tracking.address import is_sqlite, same_store, strip_credentials
from mlflow_stability.vocabulary.run import Opening
from mlflow_stability.vocabulary.settings import JOURNAL_FOLDER

DEFAULT_JOBS = 4  # sessions that are delivered at once: most of the time each of them waits for the server
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


@dataclass(frozen=True, slots=True)
class SessionState:
    folder: Path
    openings: tuple[Opening, ...]
    size: int
    training_lives: bool
    courier_lives: bool
    problem: str  # the courier's last error; empty while the store answers

    @property
    def left_behind(self) -> bool:
        """Whether neither training nor courier is running."""
        return not self.courier_lives and not self.training_lives


def sessions_in(journal: Path) -> list[SessionState]:
    """Return the sessions of all journals in a folder, or the session that is the folder."""
    if is_session(journal):
        return [_state(journal)]
    roots = list(journal_roots_below(journal))
    if not roots and journal.is_dir() and any(journal.iterdir()) and not is_done(journal):
        raise JournalError(
            f"{journal} has no journal of mlflow-stability. Journals are in .mlflow-stability/ where the training "
            "was started, or where MLFLOW_STABILITY_JOURNAL_DIR or autolog(options=Options(journal_dir=...)) says."
        )
    return [_state(folder) for root in roots for folder in session_folders(root) if is_session(folder)]


def _state(folder: Path) -> SessionState:
    recordings = recording_folders(folder)
    openings = tuple(opening for opening in map(opening_if_readable, recordings) if opening is not None)
    process = process_of(folder, next(iter(openings), None))
    return SessionState(
        folder,
        openings,
        size=sum(map(journal_size, recordings)),
        training_lives=not (folder / RELEASED).exists() and process.alive(),
        courier_lives=holder_lives(folder),
        problem=str(read_page(folder / STATUS).get("error") or ""),
    )


def _seconds(_context: click.Context, _option: click.Parameter, typed: str | None) -> float | None:
    """Parse `30d`, `12h`, `90m` or `2w`."""
    if typed is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", typed.strip().lower())
    if match is None:
        raise click.BadParameter(f"{typed!r} is not an age such as 30d, 12h or 90m.")
    return float(match[1]) * _SECONDS[match[2]]


def _bytes(_context: click.Context, _option: click.Parameter, typed: str | None) -> int | None:
    """Parse `50GB`, `500MB` or `1.5TB`."""
    if typed is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]b)", typed.strip().lower())
    if match is None:
        raise click.BadParameter(f"{typed!r} is not a size such as 50GB or 500MB.")
    return int(float(match[1]) * _BYTES[match[2]])


@click.command("sync")
@click.argument("journal", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
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
    metavar="AGE",
    callback=_seconds,
    help="Afterwards, remove delivered journals, checkpoints and batches unchanged for so long: 30d, 12h.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=_bytes,
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
    names, by_folder = _names(sessions, place), {session.folder: session for session in sessions}
    reports: list[DeliveryReport] = []
    waiting = [session for session in sessions if not waits_for_its_process(session.folder)]
    # Writers of a SQLite file wait for each other; a server takes several at once.
    stores = [tracking_uri, *(opening.tracking_uri for session in waiting for opening in session.openings)]
    jobs = jobs or (1 if any(is_sqlite(uri) for uri in stores if uri) else DEFAULT_JOBS)
    start = time.monotonic()
    try:
        with closing(_reports(waiting, tracking_uri, wait, jobs, out)) as deliveries:
            for report in deliveries:
                reports.append(report)
                for line in _report_lines(names[report.session], by_folder[report.session], report):
                    out.print(line, soft_wrap=True)
    except KeyboardInterrupt:
        done = sum(not report.remaining and not report.busy for report in reports)
        out.print(
            f"Interrupted: delivered {done} of {len(waiting)}. The same command delivers the rest.", soft_wrap=True
        )
        raise
    for line in _summary_lines(by_folder, reports, len(sessions) - len(waiting), time.monotonic() - start):
        out.print(line, soft_wrap=True)
    errors = [report.error for report in reports if report.error and report.remaining]
    if not sessions:
        reason = f"{place} has only checkpoints and batches" if is_done(place) else f"there is no journal in {place}"
        out.print(f"Nothing to deliver: {reason}.", soft_wrap=True)
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


def _reports(
    sessions: list[SessionState], tracking_uri: str | None, wait: float, jobs: int, out: Console
) -> Generator[DeliveryReport, None, None]:
    """Yield the outcome of each session, delivered one after another in this process, or several at once."""
    left = {session.folder: session.size for session in sessions}
    # Where the results go to a terminal, the bar stays below them.
    with _progress(out if out.is_terminal else notes_console(), sum(left.values())) as show:

        def show_progress() -> None:
            done = len(sessions) - len(left)
            name = sessions[0].folder.name if len(sessions) == 1 else f"{done} of {len(sessions)} sessions"
            show(name, sum(min(size, waiting_bytes(folder, size)) for folder, size in left.items()))

        if min(jobs, len(sessions)) <= 1:
            for session in sessions:
                report = deliver_session(session.folder, tracking_uri, wait, lambda _: show_progress())
                left.pop(report.session)
                yield report
        else:
            with closing(
                deliver_many([session.folder for session in sessions], tracking_uri, wait, jobs)
            ) as deliveries:
                for delivery in deliveries:
                    if delivery is not None:
                        left.pop(delivery.session)
                        yield delivery
                    show_progress()


def _names(sessions: list[SessionState], place: Path) -> dict[Path, str]:
    """Return the name of each session: the place of its journal, if there are several journals."""
    roots = Counter(session.folder.parent for session in sessions)
    if len(roots) < 2:
        return {session.folder: session.folder.name for session in sessions}
    names = {}
    for session in sessions:
        root = session.folder.parent
        name = (root.parent if root.name == JOURNAL_FOLDER else root).relative_to(place)
        names[session.folder] = str(name if roots[root] == 1 else name / session.folder.name)
    return names


def _report_lines(name: str, session: SessionState, report: DeliveryReport) -> Iterator[str]:
    if report.busy:
        yield f"{name}: skipped: its courier is delivering it."
        return
    runs = ", ".join(report.run_ids) or "no run"
    if report.delivered or not report.remaining:
        count = f"{report.delivered} recording{'' if report.delivered == 1 else 's'}"
        yield f"{name}: delivered {count} ({megabytes(session.size)}) to {runs}."
    if report.remaining:
        running = session.training_lives and not report.error
        reason = "the training is still running" if running else report.error or "not all sent"
        yield f"{name}: {megabytes(report.waiting_bytes)} not delivered ({reason})."
    if report.refused:
        yield f"{name}: the store refused {', '.join(report.refused)}; the full record has them."


def _summary_lines(
    sessions: Mapping[Path, SessionState], reports: Sequence[DeliveryReport], kept_before: int, seconds: float
) -> Iterator[str]:
    done = [report for report in reports if not report.busy and not report.remaining]
    kept = [report.kept_for for report in reports if report.kept_for]
    if len(sessions) > 1:
        size = megabytes(sum(sessions[report.session].size for report in done))
        others = {
            "delivered before": kept_before,
            "not delivered": sum(report.remaining > 0 for report in reports),
            "skipped, for their couriers deliver them": sum(report.busy for report in reports),
        }
        rest = "".join(f"; {count} {result}" for result, count in others.items() if count)
        yield f"Delivered {len(done)} of {len(sessions)} sessions ({size}) in {seconds:.0f} s{rest}."
    if len(kept) == len(sessions) == 1:
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
    """Show a bar with the bytes that are left while something is sent, on a terminal only."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[left]} left"))
    hidden = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=max(1, size), left=megabytes(size))

        def show(name: str, left: int) -> None:
            bar.update(task, description=name, completed=max(0, size - left), left=megabytes(left))

        yield show
