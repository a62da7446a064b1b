"""The estimate of a prompt, and what a vendor is believed that reports a usage."""

import asyncio

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import Started, Usage, UsageSource
from antiphon.domain.messages import MediaContent, MediaKind, Message, Role, TextContent, Tool, Tools
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.domain.values import replace
from antiphon.engines.base import RequestSize
from antiphon.engines.vendors.base import NO_ATTRIBUTES, VendorModel
from antiphon.engines.vendors.engine import (
    IMAGE_TOKENS,
    LONGEST_CONTEXT,
    MAX_EXCESS_OUTPUT,
    MAX_HIDDEN_OUTPUT,
    MAX_HIDDEN_PROMPT,
    MAX_IMAGE_TOKENS,
    VendorEngine,
    bound_size,
    limit_usage,
)
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon_testing import flatten
from tests.support.billing_vendor import serve_billing_vendor

TEXT = "word" * 100
IMAGE = MediaContent(MediaKind.IMAGE, "image/png", data="A" * 90_000)
PDF = MediaContent(MediaKind.DOCUMENT, "application/pdf", data="A" * 400_000)
TOOLS = Tools((Tool("f", "what it does " * 400),))
MODEL = VendorModel("m", "v", VendorProfile(modalities=("text", "image", "document")))
TEN = Output(max_tokens=10)


def measure(conversation: Conversation, output: Output = TEN) -> RequestSize:
    request = GenerationRequest("m", (conversation,), output=output)
    return bound_size(request, OpenAIUpstream().encode(request, MODEL, NO_ATTRIBUTES), MODEL)


def test_the_estimate_of_a_prompt_has_its_images_and_its_tools():
    text = measure(Conversation((Message(Role.USER, TEXT),)))
    assert text.estimated_prompt_tokens == 100
    shown = Message(Role.USER, TEXT, content=(TextContent(TEXT), IMAGE, IMAGE))
    pictures = measure(Conversation((shown,)))
    assert pictures.estimated_prompt_tokens == 100 + 2 * IMAGE_TOKENS < pictures.prompt_tokens
    tools = measure(Conversation((Message(Role.USER, TEXT),), tools=TOOLS))
    assert 100 + 13 * 100 < tools.estimated_prompt_tokens < tools.prompt_tokens


def test_a_document_reserves_a_token_for_each_byte_up_to_the_models_context():
    """It counted as one image."""
    message = Message(Role.USER, TEXT, content=(TextContent(TEXT), PDF, PDF))
    request = GenerationRequest("m", (Conversation((message,)),), output=TEN)
    call = OpenAIUpstream().encode(request, MODEL, NO_ATTRIBUTES)
    free = bound_size(request, call, MODEL)
    assert free.prompt_tokens == len(call.body) and free.estimated_prompt_tokens == 100 + 200_000
    small = replace(MODEL, profile=replace(MODEL.profile, context_length=200_000))
    limited = bound_size(request, call, small)
    assert limited.prompt_tokens == len(call.body) - 800_000 + 200_000
    assert limited.estimated_prompt_tokens == 100 + 50_000


def test_all_choices_are_made_at_the_same_time():
    size = measure(Conversation((Message(Role.USER, TEXT),)), Output(max_tokens=10, choices=3))
    assert (size.choices, size.output_tokens) == (3, 30)


@pytest.mark.parametrize(
    ("content", "output", "usage", "limited"),
    [
        ((), TEN, Usage(9, 10), None),
        ((), TEN, Usage(9 + MAX_HIDDEN_PROMPT, 10 + MAX_EXCESS_OUTPUT), None),
        ((), TEN, Usage(9, 10 + MAX_HIDDEN_OUTPUT, reasoning_tokens=5), None),
        ((), Output(), Usage(9, MAX_HIDDEN_OUTPUT), None),
        ((IMAGE,), TEN, Usage(MAX_HIDDEN_PROMPT + MAX_IMAGE_TOKENS, 1), None),
        ((PDF,), TEN, Usage(LONGEST_CONTEXT, 1), None),
        ((PDF,), TEN, Usage(2**31, 10), Usage(-1, 10)),
        ((), TEN, Usage(2**31, 10, 2**30), Usage(-1, 10, -1)),
        ((), TEN, Usage(9, 2**31), Usage(9, 10)),
        ((), TEN, Usage(9, 2**31, 0, 2**31), Usage(9, 10, 0, 10)),
        ((IMAGE,), TEN, Usage(2**31, 2**31), Usage(-1, 10)),
    ],
)
def test_a_count_that_cannot_be_true_becomes_what_was_reserved(
    content: tuple[MediaContent, ...], output: Output, usage: Usage, limited: Usage | None
):
    """Of `limited`, -1 stands for the reserved prompt."""
    conversation = Conversation((Message(Role.USER, TEXT, content=content),))
    request, size = GenerationRequest("m", (conversation,), output=output), measure(conversation, output)
    options = ProviderOptions("v", "https://vendor.example/v1", ("Authorization", "Bearer "))
    provider = Provider(options, OpenAIUpstream(), lambda: None)
    reported = replace(usage, source=UsageSource.REPORTED)
    found = limit_usage(reported, request, size, provider, Context("r"), None)
    if limited is None:
        assert found == reported
        return
    assert found.source is UsageSource.ESTIMATED
    expected = [getattr(limited, name) for name in COUNTS]
    assert [getattr(found, name) for name in COUNTS] == [
        size.prompt_tokens if count == -1 else count for count in expected
    ]


COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")


async def test_the_time_in_which_a_reader_holds_an_answer_is_told():
    with serve_billing_vendor() as vendor:
        options = ProviderOptions("v", vendor.url, ("Authorization", "Bearer "), allows_private=True)
        provider = Provider(options, OpenAIUpstream(), lambda: None)
        model, context = VendorModel("late", "v"), Context("r")
        engine = VendorEngine(provider, model, build_profile(VendorProfile(), "v", "openai", frozenset()))
        request = GenerationRequest("late", (Conversation((Message(Role.USER, TEXT),)),), output=TEN)
        try:
            prepared = await engine.prepare(request, context)
            async with prepared.stream(context) as events:
                async for event in flatten(events):
                    if isinstance(event, Started):
                        await asyncio.sleep(0.2)
        finally:
            await provider.aclose()
    assert prepared.report.held_s >= 0.15 and prepared.report.sent_at is not None
