"""Which requests are traced: the operator's ratio decides, and a caller can only leave a trace out."""

from collections.abc import Iterator

import pytest

from antiphon.domain.context import SpanKind
from antiphon.settings.server import TracingSettings
from antiphon.telemetry.otlp import OtlpTracer
from tests.support.otlp_receiver import Collector, collecting

LOW, HIGH = "0af7651916cd43dd0000000000000001", "0af7651916cd43ddfffffffffffffff0"
"""Ids of traces that a ratio of a half takes, and leaves out."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def find_recorded(collector: Collector, ratio: float, trace: str, flags: str) -> tuple[bool, bool]:
    """Whether a request with this traceparent is recorded, and whether a span below it is."""
    tracer = OtlpTracer(TracingSettings(endpoint=collector.url, sample_ratio=ratio), "test")
    try:
        span = tracer.open_request("POST /x", [f"00-{trace}-b7ad6b7169203331-{flags}".encode()], {})
        inner = span.open("chat", SpanKind.INTERNAL)
        recorded = (span.is_recorded, inner.is_recorded)
        inner.close()
        span.close()
    finally:
        tracer.close()
    return recorded


@pytest.mark.parametrize(("ratio", "trace"), [(0.0, LOW), (0.5, HIGH)])
def test_a_caller_cannot_force_a_trace(collector: Collector, ratio: float, trace: str) -> None:
    assert find_recorded(collector, ratio, trace, "01") == (False, False)


@pytest.mark.parametrize(("ratio", "trace"), [(0.5, LOW), (1.0, HIGH)])
def test_the_ratio_takes_a_sampled_caller(collector: Collector, ratio: float, trace: str) -> None:
    assert find_recorded(collector, ratio, trace, "01") == (True, True)


def test_a_caller_can_leave_a_trace_out(collector: Collector) -> None:
    assert find_recorded(collector, 1.0, LOW, "00") == (False, False)
