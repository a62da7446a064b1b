"""A PDF goes to the models of vendors that take documents, in the form of each vendor."""

import json
from typing import Any

import pytest

from antiphon.domain.messages import MediaContent, MediaKind, Message, Role, TextContent
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.values import replace
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import NO_ATTRIBUTES, UpstreamDialect, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile, find_profile
from antiphon.engines.vendors.responses.dialect import ResponsesUpstream
from antiphon.errors import UnsupportedParameter

PDF = MediaContent(MediaKind.DOCUMENT, "application/pdf", "JVBERi0=", field="somewhere")
MESSAGE = Message(Role.USER, "Read.", content=(TextContent("Read."), PDF))
REQUEST = GenerationRequest("m", (Conversation((MESSAGE,)),))
MODEL = VendorModel("m", "v", VendorProfile(max_output=64, modalities=("text", "image", "document")))
DATA = "data:application/pdf;base64,JVBERi0="
FORMS: list[tuple[UpstreamDialect, Any]] = [
    (
        AnthropicUpstream(),
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF.data}},
    ),
    (GeminiUpstream(), {"inlineData": {"mimeType": "application/pdf", "data": PDF.data}}),
    (OpenAIUpstream(), {"type": "file", "file": {"filename": "document.pdf", "file_data": DATA}}),
    (ResponsesUpstream(), {"type": "input_file", "filename": "document.pdf", "file_data": DATA}),
]


@pytest.mark.parametrize(("upstream", "form"), FORMS)
def test_a_document_has_the_form_of_the_vendor(upstream: UpstreamDialect, form: Any):
    body = json.loads(upstream.encode(REQUEST, MODEL, NO_ATTRIBUTES).body)
    (turn,) = body.get("messages") or body.get("contents") or body["input"]
    assert (turn.get("content") or turn["parts"])[-1] == form
    plain = replace(MODEL, profile=replace(MODEL.profile, modalities=("text", "image")))
    with pytest.raises(UnsupportedParameter) as refused:
        upstream.encode(REQUEST, plain, NO_ATTRIBUTES)
    assert refused.value.modality == "document"  # so the text of the document is sent instead


@pytest.mark.parametrize(
    ("kind", "model", "takes"),
    [
        ("anthropic", "claude-sonnet-4-5", True),
        ("gemini", "gemini-2.5-pro", True),
        ("gemini", "gemma-4-31b-it", False),
        ("openai", "gpt-5.5", False),
    ],
)
def test_the_table_knows_which_models_take_documents(kind: str, model: str, takes: bool):
    profile = find_profile(kind, model)
    assert profile is not None and ("document" in profile.modalities) is takes
