import pytest

from mlflow_stability.tracking.address import (
    absolute_uri,
    is_sqlite,
    same_store,
    strip_credentials,
    tracking_uri_for,
    without_credentials,
)


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ("http://me:secret@host:5000/x", "http://host:5000/x"),
        ("https://token@host", "https://host"),
        (
            "postgresql+psycopg2://u:p%40w@db/mlflow?sslmode=require&password=x",
            "postgresql+psycopg2://db/mlflow?sslmode=require",
        ),
        ("postgresql://u:p/w?x#y@z@db:5432/mlflow", "postgresql://db:5432/mlflow"),
        ("http://host:5000/#/runs/a@b?x=c@d", "http://host:5000/#/runs/a@b?x=c@d"),
        ("http://[::1]:5000/a@b", "http://[::1]:5000/a@b"),
        ("file:///home/me@work/mlruns", "file:///home/me@work/mlruns"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite:////abs/mlflow.db", "sqlite:////abs/mlflow.db"),
        ("http://host:5000", "http://host:5000"),
        ("databricks", "databricks"),
    ],
)
def test_a_uri_is_written_down_without_user_and_password(uri, plain):
    assert strip_credentials(uri) == plain


def test_a_message_gives_no_password_away():
    result = without_credentials("connecting to http://me:s3cret@host:5000/api?token=s3cret failed")
    assert "s3cret" not in result
    assert "host:5000" in result


def test_a_uri_with_and_without_its_password_is_the_same_store():
    assert same_store("http://me:secret@host:5000/", "http://host:5000")
    assert not same_store("http://host:5000", "http://other:5000")
    assert same_store("sqlite:///a.db", "sqlite:////data/a.db", "/data")


def test_a_relative_path_is_meant_from_the_directory_of_the_training():
    assert absolute_uri("sqlite:///mlflow.db", "/data") == "sqlite:////data/mlflow.db"
    assert absolute_uri("mlruns", "/data") == "file:///data/mlruns"
    assert absolute_uri("file:mlruns", "/data") == "file:///data/mlruns"
    assert absolute_uri("http://host", "/data") == "http://host"
    assert is_sqlite(absolute_uri("sqlite:///mlflow.db", "/data"))


def test_a_uri_with_credentials_is_preferred_when_it_names_the_same_store(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host")
    assert tracking_uri_for("http://host", "/data") == "http://me:secret@host"
    assert tracking_uri_for("http://elsewhere", "/data") == "http://elsewhere"
    assert tracking_uri_for("http://host", "/data", "http://you:other@host") == "http://you:other@host"


def test_without_a_tracking_uri_the_default_of_mlflow_applies(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri_for(None, str(tmp_path)) == f"sqlite:///{tmp_path}/mlflow.db"
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    (tmp_path / "mlruns" / "0" / "meta.yaml").touch()
    assert tracking_uri_for(None, str(tmp_path)) == (tmp_path / "mlruns").as_uri()
