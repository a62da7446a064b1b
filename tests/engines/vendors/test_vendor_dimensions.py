"""Vectors of another length than the request's `dimensions` are an error of the vendor."""

import json

import pytest

from antiphon.domain.context import Context
from antiphon.domain.request import EmbeddingRequest, RawPrompt
from antiphon.engines.vendors.base import UpstreamDialect, VendorModel
from antiphon.engines.vendors.engine import VendorEngine
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import ProviderFailed
from tests.support.vendors.vendor_http import VendorCall, VendorReply, serve_vendor

WIDTH = 3


def answer_call(call: VendorCall) -> VendorReply:
    """Answers with vectors of three numbers, in the vendor's format."""
    vector = [1.0] * WIDTH
    is_gemini = call.path.endswith(":batchEmbedContents")
    answer = {"embeddings": [{"values": vector}]} if is_gemini else {"data": [{"embedding": vector}]}
    return VendorReply((json.dumps(answer).encode(),))


@pytest.mark.parametrize("upstream", [OpenAIUpstream(), GeminiUpstream()])
async def test_vectors_have_the_dimensions_of_the_request(upstream: UpstreamDialect):
    with serve_vendor(answer_call) as vendor:
        options = ProviderOptions("first", vendor.url, upstream.credential_header, allows_private=True)
        provider = Provider(options, upstream, lambda: "a-key")
        profile = build_profile(VendorProfile(), "first", "vendor", frozenset())
        engine = VendorEngine(provider, VendorModel("m", "first"), profile)

        async def embed(dimensions: int | None) -> int:
            request = EmbeddingRequest("m", (RawPrompt("One"),), dimensions)
            prepared = await engine.prepare_embedding(request, Context("r"))
            return (await prepared.embed(Context("r"))).dimensions

        try:
            assert await embed(None) == await embed(WIDTH) == WIDTH
            with pytest.raises(ProviderFailed, match=r"provider first .* 3 numbers instead of 2"):
                await embed(2)
        finally:
            await provider.aclose()
