"""What only vendors' models use is refused or named by a model of this server."""

import json

import pytest

from antiphon.dialects.openai.dialect import decode_chat
from antiphon.domain.context import Context
from antiphon.domain.messages import MediaContent, MediaKind, Message, Role, TextContent, ToolCall
from antiphon.domain.request import (
    NO_VENDOR_OPTIONS,
    Constraint,
    Conversation,
    GenerationRequest,
    Output,
    Prediction,
    SchemaDeclaration,
    SpeechOptions,
    VendorOptions,
)
from antiphon.domain.vendor_fields import (
    CALL_SIGNATURE,
    EXTRA_HEADERS,
    PROMPT_CACHE_KEY,
    SPEECH_ID,
    list_unused,
)
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.renderer import Renderer
from antiphon_testing import ScriptedTokenEngine
from tests.rendering.scripted_renderer import renderer
from tests.support.chat_templates import prove_here

FIELD = "messages[0].content[1].image_url"
PICTURE = MediaContent(MediaKind.IMAGE, "image/png", "AAAA", field=FIELD)
SEEN = Conversation((Message(Role.USER, "Look", content=(TextContent("Look"), PICTURE)),))
HELLO = [{"role": "user", "content": "hi"}]
TALK = Conversation((Message(Role.USER, "Hello"),))
SPOKEN = VendorOptions(modalities=("text", "audio"), audio=SpeechOptions("wav", "alloy"))


def asking(*prompts, vendor_options=NO_VENDOR_OPTIONS, **output):
    return GenerationRequest("m", prompts or (TALK,), output=Output(**output), vendor_options=vendor_options)


@pytest.mark.parametrize(
    ("request_", "param", "message"),
    [
        (asking(vendor_options=VendorOptions(verbosity="low")), "verbosity",
         "verbosity is not supported: say in a message how long the answer shall be"),
        (asking(vendor_options=VendorOptions(service_tier="flex")), "service_tier",
         "service_tier is not supported: there is one tier; leave it out"),
        (asking(vendor_options=VendorOptions(extra_params={"reasoning": {}})),
         "inference_extra_params.reasoning",
         "inference_extra_params.reasoning is not supported: the models of this server have no such "
         "parameter; leave it out"),
        (asking(vendor_options=VendorOptions(prediction=Prediction("a"))), "prediction",
         "prediction is not supported: this model uses no guesses of the answer (refused in "
         "/v1/models/{model}); leave it out"),
        (asking(vendor_options=SPOKEN), "modalities",
         "modalities is not supported: the models here give only text; leave it and audio out"),
        (asking(Conversation((*TALK.messages, Message(Role.ASSISTANT, "", speech_id="a")))),
         "messages[1].audio", "messages[1].audio is not supported: this model does not know earlier speech; "
         "send its transcript as content"),
        (asking(TALK, SEEN), FIELD, f"{FIELD} is not supported: this model takes no images "
         "(modalities in /v1/models/{model}); leave it out"),
    ],
)  # fmt: skip
async def test_what_changes_the_answer_is_refused_first(request_, param, message):
    engine, tokens = renderer()
    with pytest.raises(UnsupportedParameter) as caught:
        await engine.prepare(request_, Context("r"))
    assert (caught.value.param, caught.value.message) == (param, message)
    assert tokens.requests == []


@pytest.mark.parametrize("work", ["encode", "apply"])
async def test_a_template_shows_no_images(work):
    engine, _ = renderer()
    with pytest.raises(UnsupportedParameter) as caught:
        await getattr(engine, work)(SEEN)
    assert caught.value.param == FIELD


@pytest.mark.parametrize("tier", ["auto", "default", None])
async def test_what_asks_for_nothing_is_taken(tier):
    engine, _ = renderer()
    context = Context("r")
    options = VendorOptions("medium", tier, modalities=("text",))
    prepared = await engine.prepare(asking(vendor_options=options), context)
    assert prepared.report.ignored == ()


async def test_hints_are_named_on_every_attempt_anew():
    engine, _ = renderer()
    context = Context("r")
    called = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c", "f", "{}", "mark"),))
    thought = Message(Role.ASSISTANT, "Hm", thinking_blocks=({"type": "thinking"},), speech_id="a")
    talk = Conversation((Message(Role.USER, "Hello", name="Ada"), called, thought, *TALK.messages))
    request = asking(talk, vendor_options=VendorOptions(prompt_cache_key="k", extra_headers={"x-a": "1"}))
    for _ in range(2):
        report = (await engine.prepare(request, context)).report
        named = [PROMPT_CACHE_KEY, EXTRA_HEADERS, CALL_SIGNATURE, "messages[].thinking_blocks", SPEECH_ID]
        assert list(report.ignored)[:5] == named
        assert not report.has_own_schemas
    used = frozenset({PROMPT_CACHE_KEY, CALL_SIGNATURE, EXTRA_HEADERS, SPEECH_ID})
    assert list_unused(request, used) == ("messages[].thinking_blocks",)


class Checking(ScriptedTokenEngine):
    """Takes every constraint, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: list[Constraint] = []

    async def check(self, constraint: Constraint) -> None:
        self.checked.append(constraint)


async def test_the_engine_gets_the_relaxed_schema_alone():
    form = {"name": "n", "description": "d", "strict": False, "schema": {"enum": ["a"], "uniqueItems": True}}
    body = {"model": "m", "messages": HELLO, "response_format": {"type": "json_schema", "json_schema": form}}
    call = decode_chat(json.dumps(body).encode())
    constraint = call.request.output.constraint
    assert constraint is not None and json.loads(constraint.source) == {"enum": ["a"]}
    assert constraint.declared == SchemaDeclaration(json.dumps(form["schema"]), "n", "d", False)
    tokens, context = Checking(), Context("r")
    prepared = await Renderer(tokens, prove=prove_here).prepare(call.request, context)
    assert [each.declared for each in tokens.checked] == [None]
    named = ("response_format.json_schema.name", "response_format.json_schema.description")
    assert (call.ignored, prepared.report.ignored) == ((), named)


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"guided_json": {"enum": ["a"], "uniqueItems": True}}, '{"enum": ["a"], "uniqueItems": true}'),
        ({"guided_json": '{"uniqueItems":true}'}, '{"uniqueItems":true}'),
        ({"structured_outputs": {"json": {"uniqueItems": True}}}, '{"uniqueItems": true}'),
        (
            {"response_format": {"type": "json_object", "schema": {"uniqueItems": True}}},
            '{"type": "object", "uniqueItems": true}',
        ),
    ],
)
def test_a_schema_is_kept_as_it_was_written(fields, source):
    call = decode_chat(json.dumps({"model": "m", "messages": HELLO} | fields).encode())
    constraint = call.request.output.constraint
    assert constraint is not None and constraint.declared == SchemaDeclaration(source)
    assert "uniqueItems" not in constraint.source and call.relaxed
