"""Sends traces and the metrics of generative AI to an OpenTelemetry collector by OTLP over HTTP.

The extra `otlp` installs the SDK. Threads of the SDK send the data in batches. If the collector cannot be
reached, spans are lost and a record is logged, but no request is delayed.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial

from opentelemetry import context as otel_context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind as OtelKind
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as OtelSdkTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from antiphon import __version__
from antiphon.domain.context import Attributes, AttributeValue, Span, SpanKind
from antiphon.domain.ledger import NOTHING
from antiphon.settings.server import TracingSettings

SCOPE = "antiphon"

EXPORT_S = 5.0
"""The most seconds of one export, retries included. A server that shuts down waits at most this long for each
export."""

KINDS = {
    SpanKind.SERVER: OtelKind.SERVER,
    SpanKind.CLIENT: OtelKind.CLIENT,
    SpanKind.INTERNAL: OtelKind.INTERNAL,
}

DURATION_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bounds of durations, as OpenTelemetry's conventions define them."""

FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
"""Bounds of the time to the first token, as the conventions define them."""

TIME_PER_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Bounds of the time per output token, as the conventions define them."""

TOKEN_COUNT_BOUNDS = tuple(float(4**power) for power in range(14))
"""Bounds of token counts, as the conventions define them."""

HISTOGRAMS: Mapping[str, tuple[str, str, tuple[float, ...]]] = {
    "gen_ai.client.operation.duration": ("s", "Duration of one attempt at a route.", DURATION_BOUNDS),
    "gen_ai.client.token.usage": ("{token}", "Input and output tokens of operations.", TOKEN_COUNT_BOUNDS),
    "gen_ai.server.request.duration": (
        "s",
        "Duration of an operation, all attempts included.",
        DURATION_BOUNDS,
    ),
    "gen_ai.server.time_to_first_token": ("s", "From the beginning to the first token.", FIRST_TOKEN_BOUNDS),
    "gen_ai.server.time_per_output_token": (
        "s",
        "Time per token after the first one.",
        TIME_PER_TOKEN_BOUNDS,
    ),
}
"""Unit, description and bucket bounds of each histogram."""

METRIC_LABELS = (
    "error.type",
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
)
"""The attributes of a span that become labels of its metrics. Their values are names from the settings, or
codes, so there are few."""


class OtlpTracer:
    """Implements `Tracer` with OpenTelemetry's SDK. Its threads run until `close`."""

    def __init__(self, settings: TracingSettings, instance: str) -> None:
        """`instance`: a name that is unique to this process."""
        resource = Resource.create(
            {
                "service.name": settings.service_name,
                "service.version": __version__,
                "service.instance.id": instance,
            }
        )
        base_url = (settings.endpoint or "").rstrip("/")
        ratio_sampler = TraceIdRatioBased(settings.sample_ratio)
        # A caller's `sampled` flag can prevent a trace. It cannot force one: the operator's ratio decides.
        sampler = ParentBased(ratio_sampler, remote_parent_sampled=ratio_sampler)
        self._tracer_provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{base_url}/v1/traces", timeout=EXPORT_S)
        self._tracer_provider.add_span_processor(BatchSpanProcessor(exporter))
        metric_exporter = OTLPMetricExporter(f"{base_url}/v1/metrics", timeout=EXPORT_S)
        reader = PeriodicExportingMetricReader(
            metric_exporter,
            export_interval_millis=settings.metrics_interval * 1000,
            export_timeout_millis=EXPORT_S * 1000,
        )
        self._meter_provider = MeterProvider(
            resource=resource, metric_readers=[reader], shutdown_on_exit=False
        )
        meter = self._meter_provider.get_meter(SCOPE, __version__)
        histograms = {
            name: meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=bounds)
            for name, (unit, text, bounds) in HISTOGRAMS.items()
        }
        tracer = self._tracer_provider.get_tracer(SCOPE, __version__)
        self._create_span = partial(
            OtlpSpan, tracer=tracer, histograms=histograms, records_content=settings.content
        )
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def open_request(self, name: str, traceparents: Sequence[bytes], attributes: Attributes) -> Span:
        parent = otel_context.Context()
        if len(traceparents) == 1:
            carrier = {"traceparent": traceparents[0].decode("latin-1")}
            parent = self._propagator.extract(carrier, context=parent)
        span = self._tracer.start_span(name, context=parent, kind=OtelKind.SERVER, attributes=attributes)
        return self._create_span(span)

    def close(self) -> None:
        """Sends the remaining spans and metrics. Blocks for two exports at most."""
        self._tracer_provider.shutdown()
        self._meter_provider.shutdown(timeout_millis=EXPORT_S * 1000)


class OtlpSpan:
    """Implements `Span` with a span of the SDK."""

    __slots__ = ("_histograms", "_labels", "_span", "_tracer", "records_content")

    def __init__(
        self,
        span: OtelSpan,
        *,
        tracer: OtelSdkTracer,
        histograms: Mapping[str, Histogram],
        records_content: bool,
        labels: Attributes = NOTHING,
    ) -> None:
        """`labels`: the attributes of the span that become labels of its metrics."""
        self._span = span
        self._tracer = tracer
        self._histograms = histograms
        self.records_content = records_content
        self._labels: dict[str, AttributeValue] = dict(labels)

    @property
    def traceparent(self) -> str:
        span_context = self._span.get_span_context()
        return (
            f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{int(span_context.trace_flags):02x}"
        )

    @property
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    def open(self, name: str, kind: SpanKind, attributes: Attributes = NOTHING) -> Span:
        parent = set_span_in_context(self._span, otel_context.Context())
        span = self._tracer.start_span(name, context=parent, kind=KINDS[kind], attributes=attributes)
        return OtlpSpan(
            span,
            tracer=self._tracer,
            histograms=self._histograms,
            records_content=self.records_content,
            labels=_select_labels(attributes),
        )

    def add(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))
        self._labels |= _select_labels(attributes)

    def fail(self, code: str) -> None:
        self.add({"error.type": code})
        self._span.set_status(Status(StatusCode.ERROR, code))

    def measure(self, name: str, value: float, attributes: Attributes = NOTHING) -> None:
        self._histograms[name].record(value, {**self._labels, **attributes})

    def close(self) -> None:
        self._span.end()


def _select_labels(attributes: Attributes) -> Attributes:
    """Returns the attributes that become labels of metrics."""
    return {name: attributes[name] for name in METRIC_LABELS if name in attributes}


def create_tracer(settings: TracingSettings) -> OtlpTracer:
    """Creates the tracer of this process."""
    return OtlpTracer(settings, f"{os.uname().nodename}-{os.getpid()}")
