"""The metrics of engines, from `domain.engine_load.Load`, by model and by adapter."""

from collections.abc import Callable, Iterator, Mapping

from antiphon.domain.engine_load import AdapterLoad, Load
from antiphon.telemetry.exposition import Family, MetricKind, Series, Value

PREFIX = "antiphon_engine_"


def _family(name: str, kind: MetricKind, says: str, *more: str) -> Family:
    return Family(PREFIX + name, kind, says, ("model", *more))


def _gauge(name: str, says: str, *more: str) -> Family:
    return _family(name, MetricKind.GAUGE, says, *more)


def _counter(name: str, says: str, *more: str) -> Family:
    return _family(name, MetricKind.COUNTER, says, *more)


def _histogram(name: str, says: str) -> Family:
    return _family(name, MetricKind.HISTOGRAM, says)


UP = _gauge("up", "1 when the engine answered this scrape within a second; else 0, and nothing more of it.")

MEASURES: tuple[tuple[Family, Callable[[Load], Value]], ...] = (
    (_gauge("queued", "Sequences that wait for a place in the batch."), lambda load: load.queued),
    (_gauge("running", "Sequences in the batch."), lambda load: load.running),
    (_gauge("free_sequences", "Places in the batch that are free."), lambda load: load.free_sequences),
    (_gauge("cells", "Cells of the KV cache; one holds one token."), lambda load: load.cells),
    (_gauge("cells_used", "Cells that running sequences use."), lambda load: load.cells_used),
    (
        _gauge("cells_cached", "Cells kept for prompts that begin alike; free when needed."),
        lambda load: load.cells_cached,
    ),
    (_counter("prompt_tokens_total", "Prompt tokens computed."), lambda load: load.prefill_tokens),
    (
        _counter("cached_tokens_total", "Prompt tokens taken from kept or running prefixes."),
        lambda load: load.cached_tokens,
    ),
    (_counter("decoded_tokens_total", "Completion tokens made."), lambda load: load.decoded_tokens),
    (_counter("steps_total", "Steps of the batch: calls of the library's decode."), lambda load: load.steps),
    (_counter("admitted_total", "Sequences admitted to the batch."), lambda load: load.admitted),
    (_counter("prefix_hits_total", "Of these, those that shared a prefix."), lambda load: load.prefix_hits),
    (
        _counter(
            "preemptions_total",
            "Sequences put back into the queue: cells ran out, or another caller got the place.",
        ),
        lambda load: load.preemptions,
    ),
    (_counter("refused_total", "Sequences refused because the queue was full."), lambda load: load.refused),
    (_histogram("queue_seconds", "From asking to a place in the batch."), lambda load: load.queue_seconds),
    (
        _histogram("first_token_seconds", "From asking to the first token."),
        lambda load: load.first_token_seconds,
    ),
    (
        _histogram("inter_token_seconds", "Between tokens of one sequence."),
        lambda load: load.inter_token_seconds,
    ),
)

ADAPTER_MEASURES: tuple[tuple[Family, Callable[[AdapterLoad], Value]], ...] = (
    (_gauge("adapter_queued", "Sequences of an adapter that wait.", "adapter"), lambda load: load.queued),
    (
        _gauge("adapter_running", "Sequences of an adapter in the batch.", "adapter"),
        lambda load: load.running,
    ),
    (
        _counter("adapter_decoded_tokens_total", "Completion tokens made with an adapter.", "adapter"),
        lambda load: load.decoded_tokens,
    ),
)

FAMILIES = (UP, *(family for family, _ in (*MEASURES, *ADAPTER_MEASURES)))
"""All families of engines, in the order of the page."""


def list_series(loads: Mapping[str, Load | None], up: Mapping[str, bool]) -> Iterator[Series]:
    """Yields the series of all engines. `loads` and `up` are by model; a load is None where none is known."""
    yield UP, {(model,): int(there) for model, there in up.items()}
    known = {model: load for model, load in loads.items() if load is not None}
    for family, measure in MEASURES:
        yield family, {(model,): measure(load) for model, load in known.items()}
    for family, of_adapter in ADAPTER_MEASURES:
        yield (
            family,
            {
                (model, each.adapter): of_adapter(each)
                for model, load in known.items()
                for each in load.adapters
            },
        )
