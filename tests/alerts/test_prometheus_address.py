"""Who can reach the port for Prometheus: by real sockets, where 127.0.0.2 stands for another network of the machine."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable

import pytest
from servers.ports import free_port

from mlflow_stability.alerts.exporters import PrometheusExporter
from mlflow_stability.alerts.run_metrics import RunMetrics
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.settings import ACCEPTS


def reached(port_or_address: int | str, port: int, hosts: tuple[str, ...]) -> list[str]:
    """The hosts at which a scrape is answered."""
    lines: list[str] = []
    exporter, metrics = PrometheusExporter(port_or_address, lines.append), RunMetrics()
    exporter.serve(metrics)
    exporter.keep_listening()
    try:
        assert not lines
        return [host for host in hosts if _answers(host, port)]
    finally:
        exporter.over(metrics)


def _answers(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        if probe.connect_ex((host, port)):
            return False
    name = f"[{host}]" if ":" in host else host
    with urllib.request.urlopen(f"http://{name}:{port}/metrics", timeout=30) as answer:
        return bool(answer.status == 200)


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        (lambda port: port, ["127.0.0.1"]),
        (lambda port: f"0.0.0.0:{port}", ["127.0.0.1", "127.0.0.2"]),
        (lambda port: f"127.0.0.2:{port}", ["127.0.0.2"]),
        (lambda port: f"localhost:{port}", ["127.0.0.1"]),
    ],
)
def test_only_this_machine_is_served_unless_an_address_is_given(
    given: Callable[[int], int | str], hosts: list[str]
) -> None:
    port = free_port()
    assert reached(given(port), port, ("127.0.0.1", "127.0.0.2")) == hosts


@pytest.mark.skipif(not socket.has_ipv6, reason="without IPv6")
def test_an_address_of_ipv6_is_in_brackets() -> None:
    port = free_port()
    assert reached(f"[::1]:{port}", port, ("::1", "127.0.0.1")) == ["::1"]


@pytest.mark.parametrize("given", [9464, 9464.0, 1, 65535, "0.0.0.0:9464", "[::]:9464", "node-7.lan:80", None])
def test_a_port_or_an_address_is_accepted(given: object) -> None:
    assert ACCEPTS["prometheus_port"].check("prometheus_port", given) == given


@pytest.mark.parametrize(
    "given", ["0.0.0.0:0", "host:65536", "host:1x", "host:9464/metrics", "me@host:9464", "a b:1", "host:٣", "::1:80"]
)
def test_what_is_no_address_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(SettingsError, match=r"must be a port from 1 to 65535, or an address such as '0\.0\.0\.0:9464'"):
        ACCEPTS["prometheus_port"].check("prometheus_port", given)
