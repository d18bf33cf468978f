"""Draw a quantity by layer of two runs side by side, as on the page of `compare`."""

from __future__ import annotations

import os

from mlflow_stability.analysis.compare import pair_of
from mlflow_stability.analysis.diagnose import cards_at
from mlflow_stability.analysis.source import source_text
from mlflow_stability.diagnosis.layer_comparison import BY_LAYER
from mlflow_stability.errors import SettingsError
from mlflow_stability.figures.layers.layers_beside import layers_beside
from mlflow_stability.figures.style import Picture
from mlflow_stability.vocabulary.argument import check_arguments, one_of
from mlflow_stability.vocabulary.result import RunCard


@check_arguments
def compare_layers(
    run_a: str | os.PathLike[str],
    run_b: str | os.PathLike[str],
    quantity: str = "grad_norm",
    tracking_uri: str | None = None,
) -> Picture:
    """One quantity by layer of two runs, beside each other, aligned at the onset of trouble where there was any.

    Args:
        run_a: What ``diagnose`` takes.
        run_b: The same of the second.
        quantity: ``grad_norm``, ``update_ratio``, ``param_norm`` or ``attention_entropy`` (by head).
        tracking_uri: The server of the runs, if it is not ``MLFLOW_TRACKING_URI``.

    Returns:
        A matplotlib figure: ``figure.savefig("layers.png")``, or the last line of a notebook's cell.

    Raises:
        SettingsError: A run cannot be read, or has nothing of this by layer.

    Example:

        >>> figure = compare_layers("mlruns_fixtures/0/divergence", "mlruns_fixtures/0/healthy", "update_ratio")
        >>> figure.savefig("layers.png")
    """
    one_of(*BY_LAYER)["takes"].check("quantity", quantity)
    first, second = (
        _card(source_text(source, name), tracking_uri) for name, source in (("run_a", run_a), ("run_b", run_b))
    )
    pair = pair_of((first, second), tracking_uri)
    layers = next((layers for layers in pair.layers if layers.quantity == quantity), None)
    if layers is None:
        quantities = ", ".join(layers.quantity for layers in pair.layers)
        also = f" Both have {quantities}." if quantities else ""
        raise SettingsError(f"{' '.join(pair.lacking) or f'Neither run has {quantity} by layer.'}{also}")
    return layers_beside(layers, (first.name or first.source, second.name or second.source))


def _card(source: str, tracking_uri: str | None) -> RunCard:
    cards = list(cards_at(source, tracking_uri))
    if len(cards) > 1:
        raise SettingsError(f"{source} holds {len(cards)} runs; name one of them.")
    if cards[0].error:
        raise SettingsError(f"{source} could not be read: {cards[0].error}")
    return cards[0]
