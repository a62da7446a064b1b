"""Rankings of vendors: the shape that is sent, and the answers that are read or refused."""

import json
from typing import Any

import pytest

from antiphon.domain.events import UsageSource
from antiphon.domain.request import RerankRequest
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import UpstreamDialect, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.errors import UnsupportedParameter

UPSTREAM = OpenAIUpstream()
REQUEST = RerankRequest("m", "who", ("a", "b"))
TAKES = frozenset(("rerank", "max_tokens_per_doc"))
TWO = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": -2.5}]


def encode(request: RerankRequest, *takes: str) -> dict[str, Any]:
    call = UPSTREAM.encode_rerank(request, VendorModel("v", "p", extra_parameters=frozenset(takes)))
    assert call.path == "/rerank" and not call.is_streamed
    body: dict[str, Any] = json.loads(call.body)
    return body


def test_the_request_asks_for_every_score() -> None:
    assert encode(REQUEST, "rerank") == {"model": "v", "query": "who", "documents": ["a", "b"], "top_n": 2}
    cut = RerankRequest("m", "who", ("a",), 5)
    assert encode(cut, *TAKES)["max_tokens_per_doc"] == 5


def test_a_cut_that_the_vendor_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        encode(RerankRequest("m", "who", ("a",), 5), "rerank")
    assert refused.value.param == "max_tokens_per_doc"


@pytest.mark.parametrize("upstream", [UPSTREAM, AnthropicUpstream(), GeminiUpstream()])
def test_a_provider_without_rankings_refuses(upstream: UpstreamDialect) -> None:
    with pytest.raises(UnsupportedParameter, match=r"provider p ranks no documents.*\[providers\.p\]"):
        upstream.encode_rerank(REQUEST, VendorModel("v", "p"))


@pytest.mark.parametrize(
    ("told", "tokens", "source"),
    [
        ({"usage": {"prompt_tokens": 7, "total_tokens": 7}}, 7, UsageSource.REPORTED),
        ({"usage": {"total_tokens": 7}}, 7, UsageSource.REPORTED),
        ({"meta": {"tokens": {"input_tokens": 7.0}}}, 7, UsageSource.REPORTED),
        ({"meta": {"billed_units": {"search_units": 1}}}, 2, UsageSource.ESTIMATED),
        ({"usage": {"prompt_tokens": -1}}, 2, UsageSource.ESTIMATED),
        ({}, 2, UsageSource.ESTIMATED),
    ],
)
@pytest.mark.parametrize("name", ["results", "data"])
def test_scores_are_read_in_the_order_of_documents(
    name: str, told: dict[str, Any], tokens: int, source: UsageSource
) -> None:
    ranking = UPSTREAM.decode_rerank(REQUEST, json.dumps({name: TWO} | told).encode())
    assert ranking.scores == (-2.5, 0.9)
    assert (ranking.prompt_tokens, ranking.source) == (tokens, source)


@pytest.mark.parametrize(
    "results",
    [
        [],
        TWO[:1],
        [*TWO, TWO[0]],
        [TWO[0], TWO[0]],
        [TWO[0], {"index": 2, "relevance_score": 1}],
        [TWO[0], {"index": 0, "relevance_score": 1e999}],
        [TWO[0], {"index": 0, "relevance_score": "high"}],
        None,
    ],
)
def test_scores_that_do_not_match_are_an_error(results: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the decoder has words of its own
        UPSTREAM.decode_rerank(REQUEST, json.dumps({"results": results}).encode())
