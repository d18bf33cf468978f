"""A courier that is killed between the answer of a service and its own note that the alert was sent."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from courier.staging import Training
from findings import at_step
from servers.alert_services import ChatServer

import mlflow_stability
from mlflow_stability.alerts.alert import OUTLETS_VARIABLE, Alert, outlet_settings
from mlflow_stability.courier.deliver import ask_for_short_requests
from mlflow_stability.courier.progress import read_page
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Closing

AT_THIS_SERVER = """
from apprise.plugins import opsgenie, pagerduty
opsgenie.OPSGENIE_API_LOOKUP["us"] = "http://{address}/v2/alerts"
pagerduty.PAGERDUTY_API_LOOKUP["us"] = "http://{address}/v2/enqueue"
"""
"""Read by Python as it starts: the courier is a process of its own."""
OPSGENIE = "opsgenie://12345678-1234-1234-1234-123456789abc"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "key"),
    [("pagerduty://integrationkey@apikey", "dedup_key"), (OPSGENIE, "alias"), ("json://{address}/hook", "")],
)
def test_an_alert_is_repeated_at_most_once_and_by_its_first_key(
    tmp_path: Path, sqlite_uri: str, url: str, key: str
) -> None:
    ask_for_short_requests()
    with ChatServer() as server:
        (tmp_path / "sitecustomize.py").write_text(AT_THIS_SERVER.format(address=server.address))
        settings = outlet_settings([Alert(url.format(address=server.address))], "")
        package = Path(mlflow_stability.__file__).parents[1]
        environment = {OUTLETS_VARIABLE: settings.text(), "PYTHONPATH": os.pathsep.join([str(tmp_path), str(package)])}
        training = Training(tmp_path / ".mlflow-stability", sqlite_uri, interactive=True)
        courier = training.start_courier(**environment)
        # Stopped before the answer, killed after it: nothing of the answer can have been noted.
        server.before_answer = lambda: courier.send_signal(signal.SIGSTOP)
        server.after_answer = courier.kill
        training.train(1, 50)
        training.journal.append(
            at_step(50, "loss_spike", Severity.CRITICAL, "loss 9 at step 50, 20σ above its baseline.", time=time.time())
        )
        courier.wait(60)
        assert courier.returncode == -signal.SIGKILL
        (page,) = training.folder.glob("*/alerts.json")
        (channel,) = read_page(page)["channels"].values()
        assert len(channel["pending"]) == 1, "the alert was accepted, and is not known as sent"

        server.before_answer = server.after_answer = lambda: None
        training.end(Closing("finished", "", 50, time.time()))
        assert training.start_courier(**environment).wait(60) == 0
    first, again = (item.body for item in server.taken)
    if key:
        assert first[key]
        assert again[key] == first[key]
    assert again == first
