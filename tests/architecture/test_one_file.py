"""One file adds a signal, a detector, a cause, a log format, a report format, a figure; everything follows from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from architecture.repository import PACKAGE, ROOT

DETECTOR = '''
"""Says when the loss is exactly 13."""

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class UnluckyLossFacts(Facts):
    """An unlucky loss."""

    kind: ClassVar[str] = "unlucky_loss"
    metrics: ClassVar = ("loss",)

    loss: float
    """The loss, in its unit."""
    number: float
    """The unlucky number."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss is 13 at step 7 (unlucky number 13).``"""
        return f"loss is {self.loss:g} at {unit} {step} (unlucky number {self.number:g})."


@dataclass(frozen=True, slots=True)
class UnluckyLoss(Detector):
    """The loss is unlucky.

    What it sees: a loss of exactly {number}.

    Why it matters: it does not; this is a toy.

    What to try: train on.

    When it is wrong: always.

    Reference: none at all, for this is a toy.
    """

    number: float = 13.0
    """The unlucky number."""

    kind = "unlucky_loss"
    noun = "an unlucky loss"
    plural = "unlucky losses"
    quantities = ("loss",)
    question = "Was the loss unlucky?"
    check_by_hand = "Look for {number} in the log."
    symptom = Symptom.RISING
    instability = Instability.HARMFUL
    remedies = (Remedy(Action.IN_WORDS, text="Cross your fingers."),)
    state_type = list

    def step(self, state: list[int], point: Point) -> tuple[list[int], Finding | None]:
        """Look at the next loss."""
        if point.value != self.number or state:
            return state, None
        return [point.step], self.finding(point, Severity.WARNING, UnluckyLossFacts(point.value, self.number))
'''
CAUSE = '''
"""Looks for the cause in the calendar."""

from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.diagnosis.causes.catalog import CauseType, Check, CheckResult, cause_found, ruled_out
from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.vocabulary.result import Action, Remedy


def calendar_check(context: EpisodeContext) -> CheckResult:
    """Whether it was a Friday."""
    if context.history.params.get("day") != "Friday":
        return ruled_out("the calendar: no Friday")
    step = context.episode.start
    return cause_found("friday", f"It was a Friday at step {step}.", "day = Friday", since=step, certainty="certain")


CAUSES = (
    CauseType(
        "friday", "It was a Friday.", "The parameter `day` says so.", "On holidays.",
        (Remedy(Action.IN_WORDS, text="Wait until Monday."),),
    ),
)
CHECKS = (Check(calendar_check, {Symptom.RISING: 1, Symptom.NON_FINITE: 1}, frozenset({"friday"})),)
'''
SIGNAL = '''
"""Measures the largest weight of each layer, by its absolute value."""

from collections.abc import Sequence

import torch

from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.probes.probe import PeriodicProbe, ProbeFactory, StepView
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType

SIGNALS = (
    SignalType(
        "toy_peak",
        "largest weight of the toy; every 5 steps",
        "optimizer",
        unit="{toy}",
        exported="llm_toy_peak",
        by_layer=True,
        combined="max",
        summary=("max",),
    ),
)


class ToyPeak(PeriodicProbe):
    """The largest weights."""

    part = "toy peak"

    def __init__(self) -> None:
        super().__init__(5)
        self._found: dict[str, torch.Tensor] = {}

    def after_step(self, view: StepView) -> None:
        """Look at one optimizer's weights."""
        held = view.layers.held(view.optimizer, view.step)
        for name, parameter in zip(held.names, held.parameters(view.optimizer), strict=True):
            peak = parameter.detach().abs().max()
            self._found[name] = torch.maximum(peak, self._found.get(name, peak))

    def blocks(self, step: int) -> Sequence[Block]:
        """Of the whole model, and of each layer."""
        found, self._found = self._found, {}
        if not found:
            return ()
        layers = tuple(Signal("toy_peak", name) for name in found)
        peaks = torch.stack(list(found.values()))
        whole = Block(signals_at(("toy_peak",), ""), peaks.max().reshape(1))
        return whole, Block(layers, peaks)


PROBES: tuple[ProbeFactory, ...] = (lambda context: ToyPeak(),)
'''
LOG_FORMAT = '''
"""Reads logs that begin with TOYLOG, with a loss a line."""

from mlflow_stability.importers.log_content import LogContent
from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.log_format import LogFile, LogFormat, RecognisedBy
from mlflow_stability.vocabulary.run import RunHistory


def read(log_file: LogFile) -> list[RunHistory] | None:
    """The one run in it."""
    if not log_file.head.startswith(b"TOYLOG"):
        return None
    gathered = LogContent()
    for step, line in enumerate(log_file.path.read_text().splitlines()[1:]):
        gathered.add_row(step, {"loss": float(line)}, step)
    gathered.params["day"] = "Friday"
    return [history_of(gathered, log_file.path, "toy")]


FORMAT = LogFormat("toy logs", RecognisedBy.MARK, read, frozenset({".toy"}))
'''
FIGURE = '''
"""A picture of one word."""

from mlflow_stability.figures.run_figure import FigureData, RunFigure


def draw(data: FigureData) -> bytes:
    """Draw the word."""
    from matplotlib.figure import Figure

    from mlflow_stability.figures.style import png

    figure = Figure(figsize=(2, 1))
    figure.text(0.1, 0.5, f"{len(data.grid('adam_rms').layers)} layers")
    return png(figure)


FIGURES = (RunFigure("one_word", draw, lambda data: data.has_layers("adam_rms"), by_layer=("adam_rms",)),)
'''
OUTPUT_FORMAT = '''
"""A report in one word a line."""

from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import ReportFormat
from mlflow_stability.vocabulary.result import Comparison


def run(report: Report) -> str:
    """The kinds that were found."""
    return "".join(f"{episode.kind}\\n" for _, episode in report.issues())


def comparison(compared: Comparison) -> str:
    """How many runs there are."""
    return f"{len(compared.cards)}\\n"


FORMAT = ReportFormat("words", run, comparison, (".words",))
'''


class Done(NamedTuple):
    code: int
    out: str


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, to which one file of each sort is added, and nothing else is changed."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    copied = folder / PACKAGE.name
    (copied / "kinds" / "loss" / "unlucky_loss.py").write_text(DETECTOR)
    (copied / "probes" / "parameters" / "toy_peak.py").write_text(SIGNAL)
    (copied / "diagnosis" / "causes" / "calendar_day.py").write_text(CAUSE)
    (copied / "importers" / "formats" / "toy_log.py").write_text(LOG_FORMAT)
    (copied / "reports" / "formats" / "words.py").write_text(OUTPUT_FORMAT)
    (copied / "figures" / "of_run" / "one_word.py").write_text(FIGURE)
    return folder


def run_in(package: Path, *arguments: str) -> Done:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(package), "COLUMNS": "100"},
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    return Done(done.returncode, f"{done.stdout}{done.stderr}")


COMMANDS = """
import contextlib, io, json, sys
from mlflow_stability.cli.main import run

results = []
for arguments in json.loads(sys.argv[1]):
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run(arguments)
    results.append([code, out.buffer.getvalue().decode()])
print(json.dumps(results))
"""


def printed_by(package: Path, *commands: str) -> list[str]:
    """What the command line prints for each of these commands, run one after the other in one process."""
    done = run_in(package, "-c", COMMANDS, json.dumps([command.split() for command in commands]))
    assert done.code == 0, done.out
    results = json.loads(done.out.splitlines()[-1])
    assert {code for code, _ in results} <= {0, 1}, results
    return [" ".join(printed.split()) for _, printed in results]


@pytest.fixture
def log(package: Path) -> Path:
    """A log in the toy format: a loss that falls, is 13 once, and diverges at last."""
    values = [2.0 - 0.005 * step for step in range(200)] + [13.0] + [1.0] * 20
    values += [1.0 * 1.2**step for step in range(60)]
    file = package / "run.toy"
    file.write_text("TOYLOG\n" + "\n".join(map(str, values)) + "\n")
    return file


@pytest.mark.slow
def test_a_detector_is_found_explained_and_in_the_manual(package: Path) -> None:
    explained, all_kinds, page, listed = printed_by(
        package, "explain unlucky_loss", "explain", "manual findings", "thresholds unlucky_loss"
    )
    for part in ("The loss is unlucky.", "loss of exactly 13.", "rain on.", "number = 13", "The unlucky number."):
        assert part in explained
    assert "from mlflow_stability.kinds import UnluckyLoss" in explained
    assert "unlucky_loss" in all_kinds
    assert "unlucky_loss" in page
    assert "The unlucky number." in page
    assert "number = 13 The unlucky number." in listed


@pytest.mark.slow
def test_a_detector_is_one_of_the_default_ones_and_has_its_noun_and_its_remedies(package: Path) -> None:
    code = (
        "from mlflow_stability.kinds.catalog import default_detectors, describe, read_detectors\n"
        "from mlflow_stability.kinds.panel import Panel\n"
        "from mlflow_stability.kinds.catalog import noun_of\n"
        "from mlflow_stability.vocabulary.measured.signal import StepReading\n"
        "from mlflow_stability.vocabulary.measured.signal import Signal\n"
        "assert read_detectors(describe(default_detectors())) == default_detectors()\n"
        "panel = Panel()\n"
        "(found,) = panel.judge(StepReading(7, (Signal('loss', ''),), (13.0,)))\n"
        "print(found.kind, found.step, noun_of(found.kind), noun_of(found.kind, 3), *found.remedies)\n"
        "from mlflow_stability import judge\n"
        "from mlflow_stability.kinds import UnluckyLoss\n"
        "losses = [14.0 if step == 200 else 15.0 - 0.01 * (step % 3) for step in range(300)]\n"
        "print(*judge(losses, detectors=[UnluckyLoss(number=14.0)]).findings)\n"
    )
    done = run_in(package, "-c", code)
    declared, own = done.out.splitlines()
    assert declared == "unlucky_loss 7 an unlucky loss 3 unlucky losses Cross your fingers."
    assert own == "<Finding WARNING unlucky_loss: loss is 14 at step 200 (unlucky number 14).>"


@pytest.mark.slow
def test_a_checklist_asks_the_question_that_a_detector_declares(package: Path, log: Path) -> None:
    asked, answered = printed_by(package, "checklist unlucky_loss", f"checklist unlucky_loss --run {log}")
    assert "1. Was the loss unlucky? manual check: Look for 13 in the log." in asked
    assert "1. bad Was the loss unlucky? Loss is 13 at step 200 (unlucky number 13)." in answered


@pytest.mark.slow
def test_the_facts_of_a_detector_are_read_from_a_journal_and_from_an_artifact(package: Path) -> None:
    event = {
        "step": 7,
        "kind": "unlucky_loss",
        "message": "It was.",
        "evidence": {"loss": 13.0},
        "facts": {"kind": "unlucky_loss", "loss": 13.0, "number": 13.0},
    }
    line = json.dumps({"record": "event", "severity": "WARNING", **event})
    code = (
        "from mlflow_stability.journal.journal import decode\n"
        f"print(decode(['event', {event | {'severity': 20}!r}]).facts.sentence(7))\n"
        "from mlflow_stability.tracking.artifacts import read_line\n"
        f"print(read_line({line!r}).facts.sentence(8, 'epoch'))\n"
    )
    sentences = ["loss is 13 at step 7 (unlucky number 13).", "loss is 13 at epoch 8 (unlucky number 13)."]
    assert run_in(package, "-c", code).out.splitlines() == sentences


@pytest.mark.slow
def test_a_detector_that_declares_harm_is_part_of_one_trouble_and_costs_unconfirmed_states(package: Path) -> None:
    code = (
        "from mlflow_stability.session.autopilot.decider import HARMFUL\n"
        "from mlflow_stability.session.training_output import Troubles\n"
        "from mlflow_stability.vocabulary.result import Finding, Severity, Text\n"
        "troubles = Troubles()\n"
        "kinds = ('loss_spike', 'unlucky_loss')\n"
        "found = [Finding.at(Text('It was.'), 7, Severity.WARNING, kind=kind) for kind in kinds]\n"
        "print('unlucky_loss' in HARMFUL, [troubles.is_news(each) for each in found])\n"
    )
    assert run_in(package, "-c", code).out == "True [True, False]\n"


TRAINING = """
import mlflow
import torch

import mlflow_stability

mlflow.set_tracking_uri("sqlite:///toy.db")
options = mlflow_stability.Options(exit_wait=60)
mlflow_stability.autolog(strict=True, layers_every_n_steps=5, layer_metrics=True, options=options)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
session = mlflow_stability.current_session()
mlflow_stability.autolog(disable=True)
assert session.wait(60)
(run,) = mlflow.MlflowClient().search_runs(["0"])
peak = max(float(each.detach().abs().max()) for each in model.parameters())
assert abs(run.data.metrics["stability/optimizer/toy_peak"] - peak) < 1e-6
print(*sorted(key for key in run.data.metrics if "toy" in key))
"""


@pytest.mark.slow
def test_a_signal_is_measured_and_sent_into_its_section_with_its_layers(package: Path, template_database: Path) -> None:
    shutil.copy(template_database, package / "toy.db")
    done = run_in(package, "-c", TRAINING)
    charts = ("layers/toy_peak/0", "layers/toy_peak/1", "optimizer/toy_peak", "optimizer/toy_peak_max")
    assert " ".join(f"stability/{chart}" for chart in charts) in done.out.splitlines(), done.out


@pytest.mark.slow
def test_a_signal_is_documented_with_its_unit_and_its_section_and_no_torch_is_loaded_for_it(package: Path) -> None:
    (page,) = printed_by(package, "manual signals")
    assert "`toy_peak` | optimizer | toy | largest weight of the toy; every 5 steps; by layer, too |" in page
    code = (
        "import sys\n"
        "from mlflow_stability.alerts.run_metrics import BY_QUANTITY, KNOWN_QUANTITIES\n"
        "from mlflow_stability.tracking.keys import metric_key\n"
        "from mlflow_stability.tracking.thinning import chosen_signals\n"
        "from mlflow_stability.vocabulary.measured.signal import Signal\n"
        "names = BY_QUANTITY['toy_peak']\n"
        "print(metric_key(Signal('toy_peak')), names.prometheus, names.otel, names.meaning, names.unit)\n"
        "layers = [Signal('toy_peak', each) for each in ('h.0.a', 'h.0.b', 'h.1.a')]\n"
        "print(*[(str(each.signal), each.value((1.0, 3.0, 2.0))) for each in chosen_signals(layers, 'blocks')])\n"
        "print('toy_peak' in KNOWN_QUANTITIES, 'torch' in sys.modules)\n"
    )
    values, charts, loaded = run_in(package, "-c", code).out.splitlines()
    assert values == "stability/optimizer/toy_peak llm_toy_peak llm.toy_peak Largest weight of the toy {toy}"
    assert charts == "('toy_peak_max', 3.0) ('toy_peak@h.0', 3.0) ('toy_peak@h.1', 2.0)"
    assert loaded == "True False"


@pytest.mark.slow
def test_a_cause_is_named_with_its_remedy_and_explained(package: Path, log: Path) -> None:
    diagnosed, explained, page = printed_by(
        package, f"diagnose {log} --output-format json", "explain friday", "manual causes"
    )
    (run,) = json.loads(diagnosed)["runs"]
    assert run["cause"]["name"] == "friday"
    assert any("Wait until Monday." in remedy["sentence"] for remedy in run["remedies"])
    assert "On holidays." in explained
    assert "Wait until Monday." in page


@pytest.mark.slow
def test_a_log_format_is_read_and_listed(package: Path, log: Path) -> None:
    other = package / "binary.bin"
    other.write_bytes(b"\x00\x01\x02\xff" * 100)
    assert "divergence" in printed_by(package, f"diagnose {log}")[0]
    assert "toy logs" in run_in(package, "-m", "mlflow_stability", "diagnose", str(other)).out


@pytest.mark.slow
def test_an_output_format_is_offered_written_and_recognized_by_its_ending(package: Path, log: Path) -> None:
    helped, diagnosed, compared = printed_by(
        package,
        "diagnose --help",
        f"diagnose {log} --output-format words",
        f"compare {log} {log} --output out.words --no-cache",
    )
    assert "words" in helped
    assert "divergence" in diagnosed.split()
    assert compared == ""
    assert (package / "out.words").read_text().strip().isdigit()


@pytest.mark.slow
def test_a_figure_is_drawn_from_what_it_asked_for_and_sent_to_the_run(package: Path) -> None:
    code = """
import sys
from pathlib import Path

sys.path.append(sys.argv[2])
from courier.staging import Fed, Training

from mlflow_stability.courier.sinks.figure_sink import FigureSink
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading


class Store:
    run_id = "a run"

    def upload(self, file, folder):
        print(folder, file.name, file.read_bytes()[1:4].decode())


training = Training(Path(sys.argv[1]), "sqlite:///never-opened.db")
signals = (Signal("loss"), Signal("adam_rms", "a"), Signal("adam_rms", "b"))
for step in range(20):
    training.journal.append(StepReading(step, signals, (1.0 / (step + 1), 1.0, 2.0), 0, float(step)))
fed = Fed(training.journal, FigureSink(Delivered(training.journal.folder), Store()))
assert "matplotlib" not in sys.modules
fed.drive()
training.end()
"""
    done = run_in(package, "-c", code, str(package / "journal"), str(ROOT / "tests"))
    assert done.out == "stability dashboard.png PNG\nstability/layers one_word.png PNG\n"


def test_nothing_of_the_toys_is_in_the_real_package() -> None:
    done = run_in(ROOT, "-m", "mlflow_stability", "explain", "unlucky_loss")
    assert done.code == 2
