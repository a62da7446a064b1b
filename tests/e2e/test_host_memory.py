"""The engine host keeps nothing of a request: its memory by the system's count, with what was swapped out."""

import pytest

from benchmarks.host_memory import measure
from benchmarks.memory import compute_growth
from benchmarks.model_files import find_model

MOST = 150.0
"""Bytes of a request by which the host may grow: under 3 MB in all. What is kept of each request is more: its
tokens alone take 200 bytes, and servers that are known to grow keep more than a million."""


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_the_hosts_memory_is_flat_over_twenty_thousand_distinct_requests() -> None:
    samples = await measure(find_model("cantor"), 20_000)
    growth = compute_growth(samples)
    assert max(growth.between, growth.late) <= MOST, (growth, samples[::8])
