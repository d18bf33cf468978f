"""Makes cards on a `dask.distributed` cluster.

In: sources and the address of a scheduler. Out: for each its cards, as they are done. Promised: what is sent there and
back is text; what a worker of the cluster fails at is a card that says so. The workers need this package, and have to
reach the tracking store by the same address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlflow_stability.analysis.one_card import texts_at
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.card_text import card_of
from mlflow_stability.vocabulary.run_card import RunCard

DEADLINE = 20
"""Seconds that the scheduler has for its first answer."""
AT_ONCE = 1000
"""Sources that are handed over at a time."""


def cards_from_dask(
    sources: Sequence[str], address: str, tracking_uri: str | None, detectors: str | None
) -> Iterator[tuple[int, list[RunCard]]]:
    """For each source its place and its cards, in the order in which they are done."""
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
    with client:
        for begin in range(0, len(sources), AT_ONCE):
            part = sources[begin : begin + AT_ONCE]
            futures = [client.submit(texts_at, each, tracking_uri, detectors, pure=False) for each in part]
            places = {future.key: place for place, future in enumerate(futures, start=begin)}
            for future in as_completed(futures, loop=client.loop):  # type: ignore[no-untyped-call]
                yield places[future.key], _cards(future, sources[places[future.key]])


def _cards(future: object, source: str) -> list[RunCard]:
    error = future.exception()  # type: ignore[attr-defined]
    if error is not None:
        said = f"The cluster could not read it: {type(error).__name__}, {error}."
        return [RunCard(source, source, error=said)]
    return [card_of(text) for text in future.result()]  # type: ignore[attr-defined]
