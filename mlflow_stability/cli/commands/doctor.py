"""`doctor`: check whether recording works here, and say what to do where it does not.

Changes nothing and creates nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlflow_stability.alerts.alert import ALERTS_VARIABLE, alerts_from_environment
from mlflow_stability.alerts.channels import ChannelError, console_file, open_channel
from mlflow_stability.alerts.message import TEST_MESSAGE
from mlflow_stability.cli.commands.sync import sessions_in
from mlflow_stability.cli.options import journal_root, tracking_uri_option
from mlflow_stability.cli.output import megabytes, notes_console, result_console
from mlflow_stability.errors import TORCH_IS_MISSING
from mlflow_stability.tracking.client import check_store, mlflow_version
from mlflow_stability.vocabulary.result import Severity

MIN_FREE_BYTES = 200e6  # a day of 20 signals at 10 steps a second is about 150 MB
FINE = Severity.INFO


@dataclass(frozen=True, slots=True)
class Check:
    subject: str
    severity: Severity  # INFO: fine. WARNING: worth a look. CRITICAL: it will not work.
    state: str
    advice: str = ""  # what to do; empty for a good state


def check_python() -> Iterator[Check]:
    system = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform.startswith(("linux", "darwin")):
        yield Check("python", FINE, system)
    else:
        advice = "Training can be recorded on Linux and macOS only; runs can be read anywhere."
        yield Check("python", Severity.CRITICAL, system, advice)
    if os.environ.get("MLFLOW_STABILITY_DISABLE", "") not in ("", "0"):
        advice = "autolog() does nothing in this environment. Unset it to record."
        yield Check("switch", Severity.WARNING, "MLFLOW_STABILITY_DISABLE is set", advice)


def check_torch() -> Iterator[Check]:
    if find_spec("torch") is None:
        advice = f"Runs can be read without it. To train here, autolog() {TORCH_IS_MISSING}"
        yield Check("torch", Severity.WARNING, "not installed", advice)
        return
    try:
        # By its name, as no command may import torch: whether that works is the question here.
        torch_api = import_module("mlflow_stability.probes.hooks.torch_api")
        version, missing = torch_api.torch_version(), torch_api.missing(load=True)
    except (ImportError, OSError) as error:
        yield Check("torch", Severity.CRITICAL, f"cannot be loaded: {error}", "Install it again.")
        return
    if missing:
        features = "; ".join(dict.fromkeys(missing.values()))
        advice = f"Off without it: {features}. Needed: torch {torch_api.OLDEST_TORCH} or later."
        yield Check("torch", Severity.CRITICAL, f"{version} lacks {', '.join(missing)}", advice)
    else:
        yield Check("torch", FINE, f"{version}, all symbols that are used are present")


def check_mlflow(uri: str | None) -> Iterator[Check]:
    yield Check("mlflow", FINE, mlflow_version())
    store = check_store(uri)
    if not store.answers:
        state = f"{store.kind} {store.uri} {store.answered or f'does not answer: {store.trouble}'}"
        advice = (
            "Check the address and that the server is running. "
            "The address comes from --tracking-uri, else MLFLOW_TRACKING_URI. "
            "Training is recorded anyway: the journal keeps the data until the store answers."
        )
        yield Check("store", Severity.CRITICAL, state, advice)
    elif not store.exists:
        yield Check("store", FINE, f"{store.kind} {store.uri}, made at the first run")
    else:
        yield Check("store", FINE, f"{store.kind} {store.uri} answers in {store.seconds * 1000:.0f} ms")


def check_journal_directory() -> Iterator[Check]:
    """Check whether a journal can be written, and how much fits."""
    root = journal_root()
    folder = root
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        advice = "Choose another with autolog(options=Options(journal_dir=...)) or MLFLOW_STABILITY_JOURNAL_DIR."
        yield Check("journal", Severity.CRITICAL, f"{root} cannot be written to", advice)
        return
    free = shutil.disk_usage(folder).free
    state = f"{root}, {megabytes(free)} free"
    if free < MIN_FREE_BYTES:
        advice = "Recording stops when the disk is full; training continues. Free some space or choose another folder."
        yield Check("journal", Severity.WARNING, state, advice)
    else:
        yield Check("journal", FINE, state)


def check_sessions() -> Iterator[Check]:
    """Check the journal directory: trainings in progress, and sessions that were left behind."""
    sessions = sessions_in(journal_root())
    for session in sessions:
        if session.left_behind:
            problem = f"; its courier said last: {session.problem}" if session.problem else ""
            state = f"{session.folder.name} was left behind with {megabytes(session.size)} of journal{problem}"
            yield Check("undelivered", Severity.WARNING, state, "mlflow-stability sync")
        elif session.problem:
            state = f"{session.folder.name}: {session.problem}"
            yield Check("courier", Severity.WARNING, state, "It retries until the store answers.")
        else:
            state = "training and courier run" if session.training_lives else "its courier is delivering the rest"
            yield Check("courier", FINE, f"{session.folder.name}: {state}")
    if not sessions:
        yield Check("undelivered", FINE, "nothing")


def check_alerts() -> Iterator[Check]:
    alerts = alerts_from_environment()
    if not alerts:
        advice = f"export {ALERTS_VARIABLE}='slack://... mailto://...': URLs of apprise, separated by blanks."
        yield Check("alerts", Severity.WARNING, f"{ALERTS_VARIABLE} is not set", advice)
    for alert in alerts:
        try:
            channel = open_channel(str(alert.to), console_file(), notes_console().print)
            channel.send(TEST_MESSAGE)
        except ChannelError as error:
            advice = "Compare the URL with apprise's documentation: https://appriseit.com/services/"
            yield Check("alerts", Severity.CRITICAL, f"{alert.service}: {error}", advice)
        else:
            yield Check("alerts", FINE, f"{channel.name}: a test message was sent")


_EXIT_CODES = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
_MARKS = {
    Severity.INFO: ("ok", "green"),
    Severity.WARNING: ("look", "yellow"),
    Severity.CRITICAL: ("broken", "bold red"),
}
_ENDINGS = {
    Severity.INFO: "All checks passed.",
    Severity.WARNING: "Working, with warnings: see the lines marked 'look'.",
    Severity.CRITICAL: "Something does not work: see the lines marked 'broken'.",
}


@click.command("doctor")
@tracking_uri_option
@click.option("--alerts", is_flag=True, help="Send a test message to every channel in MLFLOW_STABILITY_ALERTS.")
def command(tracking_uri: str | None, alerts: bool) -> int:
    """Check the installation, the tracking store and the journals.

    Takes a few seconds, for torch and MLflow are loaded; the store has five to answer. Nothing is changed.

    Exit code 0: all is well. 1: a warning, such as a journal left behind. 2: something does not work, such as a
    store that does not answer.
    """
    with notes_console().status("Finding ..."):
        checks = [*check_python(), *check_journal_directory(), *check_sessions()]
        checks += [*check_torch(), *check_mlflow(tracking_uri)]  # the slow ones
        if alerts:
            checks += check_alerts()
    _show(result_console(), checks)
    return _EXIT_CODES[max(check.severity for check in checks)]


def _show(out: Console, checks: list[Check]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = _MARKS[check.severity]
        state = Text(check.state)
        if check.advice:
            state.append(f"\n-> {check.advice}", "bold")
        table.add_row(Text(mark, style), check.subject, state)
    out.print(table)
    out.print(Padding(_ENDINGS[max(check.severity for check in checks)], (1, 0, 0, 0)))
