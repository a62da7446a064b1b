"""Requests in the format of OpenAI's Responses API: what it has, and what it lacks and refuses by name."""

import json
from typing import Any

import pytest

from antiphon.domain.messages import (
    CacheControl,
    MediaContent,
    MediaKind,
    Message,
    Role,
    TextContent,
    Tool,
    ToolChoice,
    Tools,
)
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Output,
    Prediction,
    RawPrompt,
    Reasoning,
    SamplingOptions,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.engines.vendors.base import NO_ATTRIBUTES, Attributes, UpstreamCall, VendorModel
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.engines.vendors.responses.dialect import ResponsesUpstream
from antiphon.errors import RequestError, UnsupportedParameter

MODEL = VendorModel("gpt-m", "open", VendorProfile(modalities=("text", "image")))
HELLO = Message(Role.USER, "Hi.")


def ask(*messages: Message, **options: Any) -> GenerationRequest:
    return GenerationRequest("m", (Conversation(messages or (HELLO,), **options),))


def encode(
    request: GenerationRequest, model: VendorModel = MODEL, attributes: Attributes = NO_ATTRIBUTES
) -> tuple[Any, UpstreamCall]:
    call = ResponsesUpstream().encode(request, model, attributes)
    return json.loads(call.body), call


def change(request: GenerationRequest | None = None, **values: Any) -> GenerationRequest:
    return replace(request or ask(), **values)


LACKING = {
    "stop": change(output=Output(stop=("END",))),
    "n": change(output=Output(choices=2)),
    "seed": change(sampling=SamplingOptions(seed=3)),
    "logit_bias": change(sampling=SamplingOptions(logit_bias=((1, 2.0),))),
    "frequency_penalty": change(sampling=SamplingOptions(frequency_penalty=0.5)),
    "presence_penalty": change(sampling=SamplingOptions(presence_penalty=0.5)),
    "top_k": change(sampling=SamplingOptions(top_k=3)),
    "guided_regex": change(
        output=Output(constraint=Constraint(ConstraintKind.REGEX, "a", field="guided_regex"))
    ),
    "thinking_token_budget": ask(reasoning=Reasoning(budget=2000)),
    "continue_final_message": ask(
        HELLO, Message(Role.ASSISTANT, "A"), continues=True, generation_prompt=False
    ),
    "prediction": change(vendor_options=VendorOptions(prediction=Prediction("a"))),
    "modalities": change(vendor_options=VendorOptions(modalities=("text", "audio"))),
    "messages[0].name": ask(Message(Role.USER, "Hi.", name="Ada")),
    "top_logprobs": change(output=Output(logprobs=-1)),
    "messages[0].audio": ask(Message(Role.ASSISTANT, "", speech_id="s"), HELLO),
    "somewhere": ask(
        Message(
            Role.USER, "", content=(MediaContent(MediaKind.AUDIO, "audio/wav", "AAAA", field="somewhere"),)
        )
    ),
}


@pytest.mark.parametrize("param", LACKING)
def test_what_the_api_lacks_is_refused_by_name(param: str):
    takes = frozenset({"prediction", "top_k"})  # a preset may have them for the API of chats
    profile = VendorProfile(modalities=("text", "audio"), output_modalities=("text", "audio"))
    model = replace(MODEL, extra_parameters=takes, profile=profile)
    with pytest.raises(UnsupportedParameter) as refused:
        encode(LACKING[param], model)
    assert refused.value.param == param


def test_a_value_that_has_no_effect_is_left_out():
    request = change(
        sampling=SamplingOptions(frequency_penalty=0.0, temperature=0.5), output=Output(max_tokens=9)
    )
    body, call = encode(request)
    assert body == {
        "model": "gpt-m",
        "input": [{"type": "message", "role": "user", "content": "Hi."}],
        "store": False,
        "max_output_tokens": 9,
        "temperature": 0.5,
        "stream": True,
    }
    assert (call.path, call.is_streamed, call.ignored) == ("/responses", True, ())


def test_a_server_of_open_responses_gets_penalties_and_reasoning():
    model = replace(MODEL, extra_parameters=frozenset({"presence_penalty"}), reasoning_field="reasoning")
    earlier = Message(Role.ASSISTANT, "4", reasoning="2+2")
    request = change(ask(HELLO, earlier, HELLO), sampling=SamplingOptions(presence_penalty=0.5))
    body, _ = encode(request, model)
    assert body["presence_penalty"] == 0.5
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert body["input"][1] == item | {"content": [{"type": "reasoning_text", "text": "2+2"}]}


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ({}, None),
        ({"choice": ToolChoice.NONE}, "none"),
        ({"choice": ToolChoice.REQUIRED}, "required"),
        ({"choice": ToolChoice.REQUIRED, "allowed": frozenset({"a"})}, {"type": "function", "name": "a"}),
        (
            {"allowed": frozenset({"a"})},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a"}]},
        ),
    ],
)
def test_tools_and_the_choice_among_them(tools: Any, choice: Any):
    shape = {"type": "object", "properties": {"x": {"type": "string"}}}
    pair = (Tool("a", "Does a.", shape, strict=True), Tool("b"))
    body, _ = encode(ask(tools=Tools(pair, parallel=False, **tools)))
    assert body["tools"] == [
        {"type": "function", "name": "a", "description": "Does a.", "parameters": shape, "strict": True},
        {
            "type": "function",
            "name": "b",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        },
    ]
    assert body.get("tool_choice") == choice
    assert body["parallel_tool_calls"] is False


def test_the_form_of_the_text_and_the_options_of_vendors():
    options = VendorOptions(verbosity="low", service_tier="flex", prompt_cache_key="k")
    output = Output(constraint=Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "object"}'), logprobs=2)
    body, call = encode(change(output=output, vendor_options=options), attributes=Attributes("u-1"))
    schema = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
    assert body["text"] == {"format": schema, "verbosity": "low"}
    assert (body["include"], body["top_logprobs"]) == (["message.output_text.logprobs"], 2)
    assert [body[name] for name in ("service_tier", "prompt_cache_key", "user")] == ["flex", "k", "u-1"]
    assert call.ignored == ()


def test_what_belongs_to_other_vendors_is_named():
    foreign = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    marked = Message(Role.USER, "Hi.", content=(TextContent("Hi.", CacheControl("1h")),))
    answer = Message(Role.ASSISTANT, "A", reasoning="Hm.", thinking_blocks=(foreign,))
    request = ask(marked, answer, HELLO)
    body, call = encode(request)
    assert body["input"][0]["content"] == "Hi."
    names = {
        "messages[].thinking_blocks",
        "messages[].reasoning_content",
        "messages[].content[].cache_control",
    }
    assert set(call.ignored) == names
    body, call = encode(request, replace(MODEL, extra_parameters=frozenset({"cache_control"})))
    mark = {"mode": "explicit", "ttl": "12h"}
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "Hi.", "prompt_cache_breakpoint": mark}
    ]
    assert "messages[].content[].cache_control" not in call.ignored


def test_callers_cannot_set_what_limits_count():
    options = VendorOptions(extra_params={"max_tool_calls": 3})
    with pytest.raises(RequestError) as refused:
        encode(change(vendor_options=options))
    assert refused.value.param == "inference_extra_params.max_tool_calls"
    body, _ = encode(
        change(vendor_options=options), replace(MODEL, extra_fields=frozenset({"max_tool_calls"}))
    )
    assert body["max_tool_calls"] == 3


def test_text_completions_use_their_own_api():
    body, call = encode(GenerationRequest("m", (RawPrompt("Once"),), output=Output(stop=("END",))))
    assert (call.path, body["prompt"], body["stop"]) == ("/completions", "Once", ["END"])
