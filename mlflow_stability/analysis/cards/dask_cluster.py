"""Make cards on a `dask.distributed` cluster.

Texts are sent there and back. A failure of a worker, or other rules than ours, is a card with the error. The workers
need this very package, and have to reach the tracking store by the same address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

from mlflow_stability.analysis.cards.card_cache import rules_here
from mlflow_stability.analysis.diagnose import texts_at
from mlflow_stability.errors import SettingsError
from mlflow_stability.tracking.address import tracking_uri_for
from mlflow_stability.vocabulary.result import AskedCurves, RunCard, card_from_json

DEADLINE = 20  # seconds that the scheduler has for its first answer
AT_ONCE = 1000  # sources that are submitted at a time
GONE = "The cluster disconnected before the run was read."


def cards_from_dask(
    sources: Sequence[str],
    address: str,
    tracking_uri: str | None,
    detectors: str | None,
    curves: AskedCurves | None = None,
) -> Iterator[tuple[int, list[RunCard]]]:
    """Yield the place and the cards of each source, in order of completion."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise SettingsError(
            "--dask needs dask.distributed, which is not installed here: pip install 'mlflow-stability[dask]'."
        ) from None
    try:
        client = Client(address, timeout=DEADLINE, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise SettingsError(
            f"The dask scheduler at {address!r} does not answer ({type(error).__name__}). Is it running, and is the "
            "address right? It looks like tcp://10.0.0.1:8786."
        ) from error
    # Workers run in other folders: what is relative here would be something else there.
    names = (curves.loss, curves.val_loss) if curves else ("", "")
    store = tracking_uri_for(None, str(Path.cwd()), tracking_uri)
    with client:
        for begin in range(0, len(sources), AT_ONCE):
            part = sources[begin : begin + AT_ONCE]
            if client.status != "running":
                yield from ((begin + place, [RunCard(source, source, error=GONE)]) for place, source in enumerate(part))
                continue
            futures = [client.submit(judged_there, _absolute(run), store, detectors, names, pure=False) for run in part]
            places = {future.key: place for place, future in enumerate(futures, start=begin)}
            for future in as_completed(futures, loop=client.loop):  # type: ignore[no-untyped-call]
                yield places[future.key], _cards(future, sources[places[future.key]])


def judged_there(
    source: str, tracking_uri: str, detectors: str | None, curves: Sequence[str] = ("", "")
) -> tuple[str, list[str]]:
    """Run on a worker of the cluster: return its rules, and the cards as texts."""
    return rules_here(), texts_at(source, tracking_uri, detectors, curves)


def _cards(future: object, source: str) -> list[RunCard]:
    try:
        rules, texts = future.result()  # type: ignore[attr-defined]
    except CancelledError:
        return [RunCard(source, source, error=GONE)]
    except Exception as error:  # whatever was raised there
        reason = f"The cluster could not read it: {type(error).__name__}, {error}."
        return [RunCard(source, source, error=reason)]
    if rules != rules_here():
        reason = (
            f"The cluster has other detection rules than this machine (mlflow-stability {_version(rules)} there, "
            f"{_version(rules_here())} here): install the same there."
        )
        return [RunCard(source, source, error=reason)]
    return [_as_asked(card_from_json(text), source) for text in texts]


def _absolute(source: str) -> str:
    return os.path.abspath(source) if os.path.lexists(source) else source  # noqa: PTH100 - may be a run's id


def _as_asked(card: RunCard, source: str) -> RunCard:
    """Return the card with the path as it was asked for."""
    if not os.path.lexists(source):
        return card
    within = os.path.relpath(card.source, _absolute(source))
    return replace(card, source=source if within == os.curdir else os.path.join(source, within))  # noqa: PTH118


def _version(rules: str) -> str:
    version, _, fingerprint = rules.partition("\n")
    return f"{version} ({fingerprint[:8]})"
