from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from apprise.plugins import discord, jira, opsgenie, pagerduty, slack
from servers.alert_services import ChatServer, MailServer, text_of
from servers.ports import free_port

from mlflow_stability.alerts.channels import AppriseChannel, ChannelError
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.vocabulary.result import Severity

RUN = RunLink("abc123", "rare-finch-609", "http://tracking:5000/#/experiments/0/runs/abc123")
MESSAGE = AlertMessage(
    "divergence",
    Severity.CRITICAL,
    1,
    412,
    412,
    "loss 9.1 at step 412, 20σ above its baseline of 1.2 (threshold 4σ).",
    ("Restart from a checkpoint before step 412.", "Lower the learning rate.", "A third one."),
    1e12,
    {"loss": 9.1},
    RUN,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A server in place of those of the services."""
    with ChatServer() as running:
        monkeypatch.setattr(slack.NotifySlack, "webhook_url", f"http://{running.address}/services")
        monkeypatch.setattr(discord.NotifyDiscord, "notify_url", f"http://{running.address}/api/webhooks")
        monkeypatch.setitem(opsgenie.OPSGENIE_API_LOOKUP, "us", f"http://{running.address}/v2/alerts")
        monkeypatch.setitem(jira.JIRA_API_LOOKUP, "us", f"http://{running.address}/v2/alerts")
        monkeypatch.setitem(pagerduty.PAGERDUTY_API_LOOKUP, "us", f"http://{running.address}/v2/enqueue")
        yield running


def body_of(server: ChatServer, url: str) -> dict[str, object]:
    AppriseChannel(url).send(MESSAGE)
    (request,) = server.taken
    assert isinstance(request.body, dict)
    return request.body


def test_slack_gets_title_text_and_link_once(server: ChatServer) -> None:
    body = body_of(server, "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#training")
    (attachment,) = body["attachments"]  # type: ignore[misc]
    assert body["channel"] == "#training"
    assert attachment["footer"] == "mlflow-stability"
    assert "Apprise" not in str(body)
    assert attachment["title"] == "CRITICAL: divergence at step 412"
    assert "20σ above its baseline" in attachment["text"]
    assert "- Lower the learning rate." in attachment["text"]
    assert "A third one" not in attachment["text"]
    assert RUN.url in attachment["text"]


def test_discord_gets_title_text_and_link_once(server: ChatServer) -> None:
    body = body_of(server, "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js")
    assert "CRITICAL: divergence at step 412" in str(body["content"])
    assert RUN.url in str(body["content"])


def test_pagerduty_gets_a_critical_incident_once(server: ChatServer) -> None:
    body = body_of(server, "pagerduty://integrationkey@apikey")
    assert body["event_action"] == "trigger"
    payload = body["payload"]
    assert isinstance(payload, dict)
    assert payload["severity"] == "critical"
    assert "divergence at step 412" in payload["summary"]


@pytest.mark.slow
def test_pagerduty_knows_an_alert_again_that_is_sent_twice(server: ChatServer) -> None:
    url = "pagerduty://integrationkey@apikey"
    again = AlertMessage.from_plain(MESSAGE.plain())  # as a courier that was started again has it
    AppriseChannel(url).send(MESSAGE)
    second = AppriseChannel(url)
    second.send(again)
    second.send(replace(MESSAGE, first_step=500, last_step=500))
    keys = [request.body["dedup_key"] for request in server.taken]
    assert keys[0] == keys[1] != keys[2]
    payload = server.taken[0].body["payload"]
    assert (payload["source"], payload["component"]) == (socket.gethostname(), "rare-finch-609")


def test_what_a_url_says_of_an_incident_stays(server: ChatServer) -> None:
    body = body_of(server, "pagerduty://integrationkey@apikey/cluster-7/trainer?dedup=mine")
    assert body["dedup_key"] == "mine"
    payload = body["payload"]
    assert isinstance(payload, dict)
    assert (payload["source"], payload["component"]) == ("cluster-7", "trainer")


@pytest.mark.parametrize("service", ["opsgenie", "jira"])
@pytest.mark.parametrize(
    ("severity", "asked", "priority"),
    [
        (Severity.CRITICAL, "", "P1"),
        (Severity.WARNING, "", "P3"),
        (Severity.CRITICAL, "?priority=p4", "P4"),
        (Severity.CRITICAL, "?priority=normal", "P3"),
    ],
)
def test_an_alert_has_the_priority_of_its_severity_unless_the_url_has_one(
    server: ChatServer, service: str, severity: Severity, asked: str, priority: str
) -> None:
    AppriseChannel(f"{service}://a1b2c3d4-e5f6-7890-abcd-ef1234567890{asked}").send(replace(MESSAGE, severity=severity))
    assert [request.body["priority"] for request in server.taken] == [priority]


def test_a_webhook_gets_json_once(server: ChatServer) -> None:
    body = body_of(server, f"json://user:secret@{server.address}/hook")
    assert body["title"] == "CRITICAL: divergence at step 412"
    assert body["type"] == "failure"
    assert str(body["message"]).endswith(RUN.text())


def test_a_mail_has_a_subject_a_text_and_a_link() -> None:
    port = free_port()
    with MailServer(port) as server:
        AppriseChannel(f"mailto://127.0.0.1:{port}?from=train@example.com&to=me@example.com").send(MESSAGE)
    (mail,) = server.mails
    assert mail["To"] == "me@example.com"
    assert mail["Subject"] == "CRITICAL: divergence at step 412"
    lines = text_of(mail).splitlines()
    assert [line for line in lines if line] == [line for line in MESSAGE.text(1e12).splitlines() if line]


def test_what_a_server_refuses_is_an_error_without_the_address(
    server: ChatServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server.answers = [500]
    with caplog.at_level(logging.INFO), pytest.raises(ChannelError) as refused:
        AppriseChannel(f"json://user:hunter2hunter2@{server.address}/t0ken-t0ken").send(MESSAGE)
    shown = capfd.readouterr()
    for secret in ("hunter2", "t0ken"):
        assert secret not in str(refused.value) + caplog.text + shown.out + shown.err
    assert "500" in str(refused.value)


def test_no_server_at_all_is_an_error_too() -> None:
    with pytest.raises(ChannelError):
        AppriseChannel(f"json://127.0.0.1:{free_port()}/secret-path").send(MESSAGE)


@pytest.mark.parametrize("url", ["nothing://abcdefgh", "slack://abcdefgh"])
def test_a_url_that_apprise_does_not_take_is_refused_by_its_scheme_alone(url: str) -> None:
    with pytest.raises(ChannelError, match=url.partition("://")[0]) as refused:
        AppriseChannel(url)
    assert "abcdefgh" not in str(refused.value)
