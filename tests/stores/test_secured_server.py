"""A server that asks for a password, behind a proxy that speaks TLS with a certificate of its own and has a prefix."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from courier.staging import Training
from servers.mlflow_server import mlflow_server
from servers.own_certificate import own_certificate
from servers.troubled_server import TroubledServer
from stores.trainings import must_have_arrived_once, run_trainings, runs_of

from mlflow_stability.cli.main import run
from mlflow_stability.tracking.client import check_store

pytestmark = pytest.mark.slow

STEPS = 60
USER, PASSWORD = "trainer", "a-long-password-1"


@dataclass(frozen=True)
class Secured:
    """The proxy's address, and what its clients have in their environment."""

    url: str
    environment: Mapping[str, str]


@pytest.fixture(scope="module")
def secured(template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    shutil.copy(template_database, folder / "mlflow.db")
    rules = folder / "auth.ini"
    # Without its cache the server hashes the password again for each request, which takes it a tenth of a second.
    rules.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder / 'users.db'}\n"
        "auth_cache_ttl_seconds = 600\n"
    )
    certificate = own_certificate(folder)
    environment = {
        "MLFLOW_AUTH_CONFIG_PATH": str(rules),
        "MLFLOW_AUTH_ADMIN_USERNAME": USER,
        "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "secret",
    }
    store = f"sqlite:///{folder / 'mlflow.db'}"
    with (
        mlflow_server(folder, store, options=["--app-name", "basic-auth"], environment=environment) as behind,
        TroubledServer(behind, "/team/mlflow", certificate.server_side()) as proxy,
    ):
        yield Secured(
            proxy.url,
            {
                "MLFLOW_TRACKING_URI": proxy.url,
                "MLFLOW_TRACKING_USERNAME": USER,
                "MLFLOW_TRACKING_PASSWORD": PASSWORD,
                "MLFLOW_TRACKING_SERVER_CERT_PATH": str(certificate.certificate),
                "MLFLOW_EXPERIMENT_NAME": "secured",
            },
        )


@pytest.fixture
def trusted_server(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Secured:
    """This process has the credentials and knows the certificate."""
    for name, value in secured.environment.items():
        monkeypatch.setenv(name, value)
    return secured


def test_a_training_arrives_through_password_certificate_and_prefix(trusted_server: Secured, tmp_path: Path) -> None:
    (ended,) = run_trainings(tmp_path, [trusted_server.environment], STEPS)

    assert ended.code == 0, ended.errors
    assert PASSWORD not in ended.errors
    assert f"{trusted_server.url}/#/experiments/" in ended.errors
    (result,) = runs_of(trusted_server.url, "secured")
    must_have_arrived_once(result, trusted_server.url, STEPS)


@pytest.mark.parametrize(
    ("name", "value"), [("MLFLOW_TRACKING_PASSWORD", "wrong"), ("MLFLOW_TRACKING_SERVER_CERT_PATH", None)]
)
def test_what_is_wrong_is_named_and_sync_delivers_when_it_is_right(
    name: str,
    value: str | None,
    trusted_server: Secured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = Training(tmp_path / ".mlflow-stability", trusted_server.url)
    training.train(1, STEPS)
    training.end()
    with monkeypatch.context() as wrong:
        wrong.delenv(name) if value is None else wrong.setenv(name, value)
        assert name in check_store(trusted_server.url).answered
        assert run(["sync", "--wait", "0.5"]) == 2
        assert name in capsys.readouterr().err
    assert run(["sync"]) == 0
    assert "delivered" in capsys.readouterr().out


def test_a_wrong_prefix_is_named(trusted_server: Secured) -> None:
    assert "no MLflow at this address" in check_store(trusted_server.url.replace("team", "nobody")).answered
