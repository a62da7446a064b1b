"""What `antiphon top` shows, as lines of text that fit a terminal. Asks nobody and draws nothing."""

from collections.abc import Iterator, Sequence

from antiphon.cli.rates import AdapterRates, Latency, ModelRates
from antiphon.cli.terminal import shown

NAME, BAR = 15, 20
"""Columns of a model's name, and of the bar of cells."""

DIGEST = 16
"""Characters of an adapter's digest: enough to tell it from others."""

HEADINGS = (
    f"{'model':{NAME}} {'wait':>4} {'run':>4} {'prompt':>8} {'cached':>8} {'made':>8} {'first token':>13} "
    f"{'per token':>13}",
    f"{'':{NAME}} {'':>4} {'':>4} {'tok/s':>8} {'tok/s':>8} {'tok/s':>8} {'p50/p95 ms':>13} "
    f"{'p50/p95 ms':>13}",
)

LONG = 10.0
"""Seconds from which a latency is written in seconds."""


def lines(models: Sequence[ModelRates]) -> list[str]:
    """The table; 80 columns hold it."""
    return [*HEADINGS, *(line for model in models for line in _model(model))]


def cut(text: Sequence[str], height: int) -> list[str]:
    """As many lines as there is room for; the last says how many are missing."""
    if len(text) <= height:
        return list(text)
    kept = max(height - 1, 0)
    return [*text[:kept], f"{len(text) - kept} more lines; a taller window shows them"]


def _model(model: ModelRates) -> Iterator[str]:
    name = _fitted(shown(model.model), NAME)
    if not model.up:
        yield f"{name:{NAME}} its engine does not answer"
        return
    figures = " ".join(f"{_rate(rate):>8}" for rate in (model.computed, model.cached, model.made))
    times = f"{_latency(model.first_token):>13} {_latency(model.inter_token):>13}"
    yield f"{name:{NAME}} {model.queued:>4} {model.running:>4} {figures} {times}"
    if model.cells:
        used, kept = model.cells_used / model.cells, model.cells_cached / model.cells
        hits = "-" if model.prefix_hits is None else f"{model.prefix_hits:.0%}"
        yield (
            f"  cells {bar(used, kept)} {used:.0%} used, {kept:.0%} kept of {model.cells:,}; "
            f"prefix hits {hits}"
        )
    if model.preempted or model.refused:
        yield f"  so far {model.preempted:,} preempted, {model.refused:,} refused"
    yield from map(_adapter, model.adapters)


def _adapter(adapter: AdapterRates) -> str:
    digest = shown(adapter.adapter[:DIGEST])
    now = f"wait {adapter.queued}, run {adapter.running}"
    return f"  adapter {digest:{DIGEST}}  {now}, {_rate(adapter.made)} tok/s made"


def bar(used: float, kept: float) -> str:
    """Cells in use, then those kept for later, then free ones."""
    full = min(BAR, round(used * BAR))
    held = min(BAR - full, round(kept * BAR))
    return "█" * full + "▒" * held + "░" * (BAR - full - held)


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _latency(value: Latency | None) -> str:
    return "-" if value is None else f"{_milliseconds(value.p50)}/{_milliseconds(value.p95)}"


def _milliseconds(seconds: float) -> str:
    if seconds >= LONG:
        return f"{seconds:.0f}s"
    return f"{seconds * 1000:.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"
