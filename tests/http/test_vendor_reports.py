"""What the edge says of a request that a vendor's model serves."""

import pytest

from antiphon.domain.events import NO_ID, Event, Finished, FinishReason, TextDelta, TokenScore
from antiphon.domain.request import Conversation
from tests.support.http_server import CHAT, HELLO, serving
from tests.support.vendor_engine import STARTED, USAGE, VendorDouble, say

FORM = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "description": "d", "schema": {"type": "object", "uniqueItems": True}},
    },
    "prompt_cache_key": "k",
}
FIREWORKS, EMPOWER = "/fireworks/inference/v1/chat/completions", "/empower/api/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_vendor_is_told_and_nothing_is_named(stream):
    engine = VendorDouble(lambda _: say("Hi"))
    async with serving(engine) as server:
        reply = await server.ask(CHAT, HELLO | FORM | {"stream": stream, "verbosity": "low"})
    assert reply.status == 200 and not {"x-antiphon-ignored", "x-antiphon-relaxed"} & reply.headers.keys()
    (request,) = engine.requests
    assert request.is_buffered is not stream
    assert (request.vendor_options.prompt_cache_key, request.vendor_options.verbosity) == ("k", "low")
    constraint = request.output.constraint
    assert constraint is not None and constraint.declared is not None
    assert (constraint.declared.name, constraint.declared.description) == ("n", "d")


@pytest.mark.parametrize("stream", [False, True])
async def test_automatic_truncation_keeps_all_turns_and_is_named(stream):
    engine = VendorDouble(lambda _: say("Hi"))
    turns = [{"role": "user", "content": "w" * 3000}, {"role": "user", "content": "last"}]
    body = {"model": "m", "input": turns, "truncation": "auto", "max_output_tokens": 4000, "stream": stream}
    async with serving(engine) as server:
        reply = await server.ask("/v1/responses", body)
    assert (reply.status, reply.headers["x-antiphon-ignored"]) == (200, "truncation")
    conversation = engine.requests[0].prompts[0]
    assert isinstance(conversation, Conversation) and len(conversation.messages) == 2


FILTERED: list[Event] = [STARTED, TextDelta(0, "I was"), Finished(0, FinishReason.CONTENT_FILTER), USAGE]


@pytest.mark.parametrize(
    ("path", "name"), [(CHAT, "content_filter"), (FIREWORKS, "error"), (EMPOWER, "content_filter")]
)
async def test_a_filtered_choice_says_so(path, name):
    async with serving(VendorDouble(lambda _: FILTERED)) as server:
        whole = await server.ask(path, HELLO)
        streamed = await server.ask(path, HELLO | {"stream": True})
    assert whole.json()["choices"][0]["finish_reason"] == name
    chunks = [choice for event in streamed.events()[:-1] for choice in event["choices"]]
    assert [choice["finish_reason"] for choice in chunks if choice["finish_reason"]] == [name]
    assert streamed.events()[-1] == "[DONE]"


async def test_a_field_of_many_messages_is_named_once():
    class Ignoring(VendorDouble):
        async def prepare(self, request, context):
            prepared = await super().prepare(request, context)
            prepared.report.ignored = tuple(f"messages[{at}].thinking_blocks" for at in range(100))
            return prepared

    async with serving(Ignoring(lambda _: say("Hi"))) as server:
        reply = await server.ask(CHAT, HELLO)
    assert reply.headers["x-antiphon-ignored"] == "messages[].thinking_blocks"


@pytest.mark.parametrize("wanted", [1, True])
async def test_fireworks_tells_no_ids_that_nobody_knows(wanted):
    scores = (TokenScore(NO_ID, b"Hi", -0.5, ((NO_ID, b"Hi", -0.5),)),)
    end = Finished(0, FinishReason.STOP, scores=())
    events: list[Event] = [STARTED, TextDelta(0, "Hi", scores=scores), end]
    async with serving(VendorDouble(lambda _: [*events, USAGE])) as server:
        reply = await server.ask(FIREWORKS, HELLO | {"logprobs": wanted})
    logprobs = reply.json()["choices"][0]["logprobs"]
    assert "token_id" not in str(logprobs) and "-1" not in str(logprobs)
    tokens = [each["token"] for each in logprobs["content"]] if wanted is True else logprobs["tokens"]
    assert tokens == ["Hi"]
