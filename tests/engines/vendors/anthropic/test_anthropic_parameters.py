"""Every parameter is in the body for Anthropic, or is refused by name."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.domain.messages import MediaContent, MediaKind, Message, Role, Tool, ToolCall, ToolChoice, Tools
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    EmbeddingRequest,
    GenerationRequest,
    Mirostat,
    Output,
    Prediction,
    RawPrompt,
    Reasoning,
    ReasoningFieldNames,
    SamplingOptions,
    SchemaDeclaration,
    SpeechOptions,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import NO_ATTRIBUTES, Attributes, UpstreamCall, VendorModel
from antiphon.engines.vendors.parameters import ALL_LOGPROBS, RERANK_NAMES, SPECIAL_CASES, list_names
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.errors import InvalidValue, MissingParameter, RequestError, UnsupportedParameter

PROFILE = VendorProfile(max_output=8000, modalities=("text", "image", "audio"), reasoning=True)
MODEL = VendorModel("claude-m", "anthropic", PROFILE)
HI = (Message(Role.USER, "Hi."),)
SAID = (*HI, Message(Role.ASSISTANT, "The"))
TOOL = Tool("clock")
PERSON = '{"type": "object", "properties": {"id": {"const": 123456789012345678901234567890}}}'
BARE = {"model": "claude-m", "max_tokens": 8000, "stream": True}
TEXT = {"type": "text", "text": "Hi."}
TURNS = [{"role": "user", "content": [TEXT]}]


def ask(prompt: Conversation | None = None, **changes: Any) -> GenerationRequest:
    return GenerationRequest("m", (prompt or Conversation(HI),), **changes)


def chat(**changes: Any) -> GenerationRequest:
    return ask(replace(Conversation(HI), **changes))


def show(part: MediaContent, role: Role = Role.USER) -> GenerationRequest:
    return ask(Conversation((Message(role, "", content=(part,)), *HI)))


def encode(
    request: GenerationRequest, model: VendorModel = MODEL, attributes: Attributes = NO_ATTRIBUTES
) -> UpstreamCall:
    return AnthropicUpstream().encode(request, model, attributes)


def read_body(
    request: GenerationRequest, model: VendorModel = MODEL, attributes: Attributes = NO_ATTRIBUTES
) -> dict[str, Any]:
    """The body without what every body has."""
    body = json.loads(encode(request, model, attributes).body)
    common = BARE | {"messages": TURNS}
    return {name: value for name, value in body.items() if common.get(name) != value}


def constrain(kind: ConstraintKind, source: str = "", **changes: Any) -> GenerationRequest:
    return ask(output=Output(constraint=Constraint(kind, source, **changes)))


def sample(**changes: Any) -> GenerationRequest:
    return ask(sampling=SamplingOptions(**changes))


@dataclass(frozen=True)
class Row:
    """A request, and what the body has because of it; None if the request is refused by the name."""

    request: GenerationRequest
    body: dict[str, Any] | None = None
    param: str | None = None
    error: type[RequestError] = field(default=UnsupportedParameter)


CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}

ROWS = {
    "max_tokens": Row(ask(output=Output(max_tokens=7)), {"max_tokens": 7}),
    "temperature": Row(sample(temperature=0.5), {"temperature": 0.5}),
    "top_p": Row(sample(top_p=0.5), {"top_p": 0.5}),
    "top_k": Row(sample(top_k=5), {"top_k": 5}),
    "stop": Row(ask(output=Output(stop=("a", "b"))), {"stop_sequences": ["a", "b"]}),
    "response_format": Row(
        constrain(ConstraintKind.JSON_SCHEMA, PERSON),
        {"output_config": {"format": {"type": "json_schema", "schema": json.loads(PERSON)}}},
    ),
    "reasoning_effort": Row(
        chat(reasoning=Reasoning("xhigh")),
        {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "xhigh"}},
    ),
    "thinking_token_budget": Row(
        chat(reasoning=Reasoning(budget=2048)),
        {"thinking": {"type": "enabled", "budget_tokens": 2048, "display": "summarized"}},
    ),
    "tools": Row(chat(tools=Tools((TOOL,))), {"tools": [CLOCK]}),
    "tool_choice": Row(
        chat(tools=Tools((TOOL,), ToolChoice.NONE)), {"tools": [CLOCK], "tool_choice": {"type": "none"}}
    ),
    "parallel_tool_calls": Row(
        chat(tools=Tools((TOOL,), parallel=False)),
        {"tools": [CLOCK], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    "continue_final_message": Row(
        ask(Conversation(SAID, generation_prompt=False, continues=True)),
        {
            "messages": [
                *TURNS,
                {"role": "assistant", "content": [{"type": "text", "text": "The"}]},
            ]
        },
    ),
    "service_tier": Row(
        ask(vendor_options=VendorOptions(service_tier="standard_only")), {"service_tier": "standard_only"}
    ),
    "seed": Row(sample(seed=1)),
    "min_p": Row(sample(min_p=0.5)),
    "typical_p": Row(sample(typical_p=0.5)),
    "repetition_penalty": Row(sample(repetition_penalty=1.5)),
    "presence_penalty": Row(sample(presence_penalty=0.5)),
    "frequency_penalty": Row(sample(frequency_penalty=0.5)),
    "logit_bias": Row(sample(logit_bias=((1, 1.0),))),
    "mirostat_target": Row(sample(mirostat=Mirostat())),
    "min_tokens": Row(sample(min_tokens=1)),
    "ignore_eos": Row(sample(ignore_eos=True)),
    "allowed_token_ids": Row(sample(allowed_token_ids=(1,))),
    "n": Row(ask(output=Output(choices=2))),
    "stop_token_ids": Row(ask(output=Output(stop_token_ids=(1,)))),
    "best_of": Row(ask(output=Output(best_of=1))),
    "echo": Row(ask(output=Output(echo=True))),
    "suffix": Row(ask(output=Output(suffix=" end"))),
    "logprobs": Row(ask(output=Output(logprobs=0))),
    "logprob_token_ids": Row(ask(output=Output(logprob_token_ids=(1,)))),
    "prompt_logprobs": Row(ask(output=Output(prompt_logprobs=0))),
    "bad_words": Row(ask(output=Output(bad_words=("a",)))),
    "skip_special_tokens": Row(ask(output=Output(show_special=True))),
    "return_token_ids": Row(ask(output=Output(token_ids=True))),
    "return_tokens_as_token_ids": Row(ask(output=Output(names_by_id=True))),
    "stream_options.continuous_usage_stats": Row(ask(output=Output(running_usage=True))),
    "truncate_prompt_tokens": Row(ask(output=Output(truncate_prompt=5))),
    "include_stop_str_in_output": Row(ask(output=Output(include_stop=True, stop=("a",)))),
    "guided_regex": Row(constrain(ConstraintKind.REGEX, "a", field="guided_regex")),
    "guided_choice": Row(constrain(ConstraintKind.CHOICE, '["a"]', field="guided_choice")),
    "guided_grammar": Row(constrain(ConstraintKind.GBNF, "root ::= a", field="guided_grammar")),
    "guided_whitespace_pattern": Row(constrain(ConstraintKind.JSON_SCHEMA, PERSON, whitespace="[ ]")),
    "add_special_tokens": Row(chat(add_special=True)),
    "add_generation_prompt": Row(chat(generation_prompt=False)),
    "chat_template": Row(chat(template="{{ messages }}")),
    "chat_template_kwargs": Row(chat(template_values={"a": 1})),
    "documents": Row(chat(documents=({"text": "a"},))),
    "cache_salt": Row(ask(cache_salt="a")),
    "priority": Row(ask(priority=1)),
    "verbosity": Row(ask(vendor_options=VendorOptions(verbosity="low"))),
    "prediction": Row(ask(vendor_options=VendorOptions(prediction=Prediction("a")))),
    "modalities": Row(ask(vendor_options=VendorOptions(modalities=("text", "audio")))),
    "audio": Row(ask(vendor_options=VendorOptions(audio=SpeechOptions("wav", "alloy")))),
    "prompt (token ids)": Row(GenerationRequest("m", (RawPrompt(tokens=(1,)),)), param="prompt"),
}

REPORTED = frozenset({"prompt_cache_key"})
"""What an answer without it still obeys: its header names it."""


def test_the_table_has_every_parameter():
    assert ROWS.keys() == list_names() - REPORTED - RERANK_NAMES - {ALL_LOGPROBS} - SPECIAL_CASES.keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_parameter_acts_or_is_refused_by_name(name: str):
    row = ROWS[name]
    if row.body is not None:
        assert read_body(row.request) == row.body
        return
    with pytest.raises(row.error) as refused:
        encode(row.request)
    assert refused.value.param == (row.param or name)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.body is not None])
def test_what_the_operator_refuses_is_not_sent(name: str):
    with pytest.raises(UnsupportedParameter) as refused:
        encode(ROWS[name].request, replace(MODEL, refused_parameters=frozenset({name})))
    assert refused.value.param == name


def test_extra_parameters_are_sent_or_still_refused():
    names = frozenset({"min_p", "seed", "logprobs", "verbosity", "logit_bias"})
    model = replace(MODEL, extra_parameters=names)
    assert read_body(sample(min_p=0.5, seed=3), model) == {"min_p": 0.5, "seed": 3}
    for name in ("logprobs", "verbosity", "logit_bias"):
        with pytest.raises(UnsupportedParameter) as refused:
            encode(ROWS[name].request, model)
        assert refused.value.param == name


FIELD = "messages[0].content[0]"
REFUSALS = {
    "a raw text": (GenerationRequest("m", (RawPrompt("a"),)), "prompt", UnsupportedParameter),
    "a high temperature": (sample(temperature=1.5), "temperature", InvalidValue),
    "any JSON": (
        constrain(ConstraintKind.JSON_OBJECT, field="response_format"),
        "response_format",
        UnsupportedParameter,
    ),
    "a schema that is none": (
        constrain(ConstraintKind.JSON_SCHEMA, "true"),
        "response_format",
        InvalidValue,
    ),
    "a tier": (ask(vendor_options=VendorOptions(service_tier="flex")), "service_tier", UnsupportedParameter),
    "an effort": (chat(reasoning=Reasoning("minimal")), "reasoning_effort", UnsupportedParameter),
    "a small budget": (chat(reasoning=Reasoning(budget=9)), "thinking_token_budget", InvalidValue),
    "no effort and a budget": (
        chat(reasoning=Reasoning("none", 2000)),
        "thinking_token_budget",
        InvalidValue,
    ),
    "some of the tools": (
        chat(tools=Tools((TOOL, Tool("a"), Tool("b")), allowed=frozenset({"a", "b"}))),
        "tool_choice",
        UnsupportedParameter,
    ),
    "one tool that may be called": (
        chat(tools=Tools((TOOL, Tool("a")), allowed=frozenset({"a"}))),
        "tool_choice",
        UnsupportedParameter,
    ),
    "a name": (
        ask(Conversation((Message(Role.USER, "Hi.", name="Ada"),))),
        "messages[0].name",
        UnsupportedParameter,
    ),
    "a recording": (
        show(MediaContent(MediaKind.AUDIO, "audio/wav", "AAAA", field=FIELD)),
        FIELD,
        UnsupportedParameter,
    ),
    "an unknown kind of image": (
        show(MediaContent(MediaKind.IMAGE, "image/tiff", "AAAA", field=FIELD)),
        FIELD,
        UnsupportedParameter,
    ),
    "a detail": (
        show(MediaContent(MediaKind.IMAGE, "image/png", "AAAA", "", "high", FIELD)),
        f"{FIELD}.detail",
        UnsupportedParameter,
    ),
    "an image of the system": (
        show(MediaContent(MediaKind.IMAGE, "image/png", "AAAA", field=FIELD), Role.SYSTEM),
        FIELD,
        UnsupportedParameter,
    ),
    "an answer at the end": (ask(Conversation(SAID)), "messages", UnsupportedParameter),
    "a user to continue": (
        chat(continues=True, generation_prompt=False),
        "continue_final_message",
        InvalidValue,
    ),
    "only the system": (ask(Conversation((Message(Role.SYSTEM, "Hi."),))), "messages", InvalidValue),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_the_vendor_lacks_is_refused(name: str):
    request, param, error = REFUSALS[name]
    with pytest.raises(error) as refused:
        encode(request)
    assert refused.value.param == param


@pytest.mark.parametrize("arguments", ["[1]", "{", "", "3"])
def test_arguments_must_be_an_object(arguments: str):
    said = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c", "clock", arguments),))
    with pytest.raises(InvalidValue) as refused:
        encode(ask(Conversation((*HI, said, Message(Role.TOOL, "12:00", tool_call_id="c")))))
    assert refused.value.param == "messages[1].tool_calls[0].function.arguments"


def test_arguments_keep_every_digit():
    exact = '{"id":123456789012345678901234567890,"at":0.10000000000000000001}'
    said = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c", "clock", exact),))
    call = encode(ask(Conversation((*HI, said, Message(Role.TOOL, "12:00", tool_call_id="c")))))
    assert f'"input":{exact}'.encode() in call.body


def test_max_tokens_come_from_the_profile_or_are_missing():
    assert json.loads(encode(ask()).body)["max_tokens"] == 8000
    with pytest.raises(MissingParameter) as refused:
        encode(ask(), VendorModel("m", "anthropic"))
    assert refused.value.param == "max_tokens"
    usual = ask(output=Output(max_tokens=9000, is_default_max_tokens=True))
    assert json.loads(encode(usual).body)["max_tokens"] == 8000


def test_a_long_whole_answer_comes_as_a_stream():
    for limit, is_streamed in ((21_333, False), (21_334, True)):
        call = encode(ask(output=Output(max_tokens=limit), is_buffered=True))
        assert call.is_streamed is is_streamed
        assert json.loads(call.body).get("stream", False) is is_streamed


def test_the_user_and_the_operators_fields_are_sent():
    assert read_body(ask(), MODEL, Attributes("u-1")) == {"metadata": {"user_id": "u-1"}}
    model = replace(MODEL, body={"inference_geo": "eu"})
    assert read_body(ask(), model) == {"inference_geo": "eu"}


def test_system_messages_first_are_the_system_prompt():
    first = (Message(Role.SYSTEM, "A"), Message(Role.DEVELOPER, "B"))
    later = Message(Role.SYSTEM, "C")
    body = read_body(ask(Conversation((*first, *HI, later))))
    assert body["system"] == [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    assert body["messages"] == [*TURNS, {"role": "system", "content": [{"type": "text", "text": "C"}]}]


def test_equal_roles_are_one_turn_and_reasoning_goes_first():
    blocks = ({"type": "thinking", "thinking": "a", "signature": "s"},)
    said = Message(
        Role.ASSISTANT, "Look.", tool_calls=(ToolCall("c", "clock", "{}"),), thinking_blocks=blocks
    )
    result = Message(Role.TOOL, "", name="clock", tool_call_id="c")
    body = read_body(ask(Conversation((*HI, *HI, said, result, *HI))))
    assert body["messages"] == [
        {"role": "user", "content": [TEXT, TEXT]},
        {
            "role": "assistant",
            "content": [
                *blocks,
                {"type": "text", "text": "Look."},
                {"type": "tool_use", "id": "c", "name": "clock", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}, TEXT]},
    ]


def test_reasoning_returns_to_its_place():
    first = {"type": "thinking", "thinking": "a", "signature": "s"}
    second = {"type": "redacted_thinking", "data": "d"}
    calls = tuple(ToolCall(name, "clock", "{}") for name in ("c", "d"))
    said = Message(
        Role.ASSISTANT,
        "One. Two.",
        tool_calls=calls,
        thinking_blocks=(first, second | {"after": {"text": 4, "calls": 1}}),
    )
    results = tuple(Message(Role.TOOL, "12:00", tool_call_id=name) for name in ("c", "d"))
    blocks = read_body(ask(Conversation((*HI, said, *results))))["messages"][1]["content"]
    uses = [{"type": "tool_use", "id": name, "name": "clock", "input": dict[str, int]()} for name in "cd"]
    texts = [{"type": "text", "text": text} for text in ("One.", " Two.")]
    assert blocks == [first, texts[0], uses[0], second, texts[1], uses[1]]


@pytest.mark.parametrize("after", [3, {"text": -1}, {"text": "a"}, {"new": 1}])
def test_reasoning_with_an_unreadable_place_is_reported(after: object):
    block = {"type": "thinking", "thinking": "a", "signature": "s", "after": after}
    said = Message(Role.ASSISTANT, "Look.", thinking_blocks=(block,))
    request = ask(Conversation((*HI, said, *HI)))
    assert encode(request).ignored == ("messages[].thinking_blocks",)
    assert read_body(request)["messages"][1]["content"] == [{"type": "text", "text": "Look."}]


def test_what_messages_lose_is_reported():
    said = Message(
        Role.ASSISTANT,
        "Look.",
        tool_calls=(ToolCall("c", "clock", "{}", signature="of another vendor"),),
        reasoning="Hm.",
        thinking_blocks=({"type": "thought", "text": "of another vendor"},),
    )
    declared = SchemaDeclaration(PERSON, "person", "A person.")
    request = ask(
        Conversation((*HI, said, Message(Role.TOOL, "12:00", tool_call_id="c"))),
        vendor_options=VendorOptions(prompt_cache_key="k"),
        output=Output(constraint=Constraint(ConstraintKind.JSON_SCHEMA, PERSON, declared=declared)),
    )
    assert set(encode(request).ignored) == {
        "prompt_cache_key",
        "response_format.json_schema.name",
        "response_format.json_schema.description",
        "messages[].tool_calls[].extra_content",
        "messages[].thinking_blocks",
        "messages[].reasoning_content",
    }
    assert encode(ask()).ignored == ()


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (Tools((TOOL, Tool("a"))), None),
        (Tools((TOOL, Tool("a")), ToolChoice.REQUIRED), {"type": "any"}),
        (
            Tools((TOOL,), ToolChoice.REQUIRED, allowed=frozenset({"clock"})),
            {"type": "tool", "name": "clock"},
        ),
        (
            Tools((TOOL, Tool("a")), ToolChoice.REQUIRED, parallel=False, allowed=frozenset({"a"})),
            {"type": "tool", "name": "a", "disable_parallel_tool_use": True},
        ),
        (Tools((TOOL, Tool("a")), allowed=frozenset({"a", "clock"})), None),
        (Tools((TOOL,), ToolChoice.NONE, parallel=False), {"type": "none"}),
    ],
)
def test_the_choice_of_tools_is_the_vendors(tools: Tools, choice: object):
    assert read_body(chat(tools=tools)).get("tool_choice") == choice


def test_tools_keep_the_callers_schema():
    parameters = {"properties": {"city": {"type": "string", "minLength": 2}}}
    kept = {"properties": {"city": {"type": "string"}}}
    tool = Tool("weather", "Tells the weather.", parameters, strict=True, supported_schema=kept)
    assert read_body(chat(tools=Tools((tool,))))["tools"] == [
        {
            "name": "weather",
            "description": "Tells the weather.",
            "input_schema": {"type": "object"} | parameters,
            "strict": True,
        }
    ]


@pytest.mark.parametrize(
    ("reasoning", "body"),
    [
        (Reasoning(), {}),
        (Reasoning(shown=False), {}),
        (Reasoning("none"), {"thinking": {"type": "disabled"}}),
        (Reasoning(budget=0), {"thinking": {"type": "disabled"}}),
        (Reasoning(is_required=True), {"thinking": {"type": "adaptive", "display": "summarized"}}),
        (
            Reasoning("low", shown=False),
            {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "low"}},
        ),
        (
            Reasoning("max", 4096),
            {
                "thinking": {"type": "enabled", "budget_tokens": 4096, "display": "summarized"},
                "output_config": {"effort": "max"},
            },
        ),
    ],
)
def test_reasoning_is_the_vendors(reasoning: Reasoning, body: dict[str, object]):
    assert read_body(chat(reasoning=reasoning)) == body


def test_a_model_without_reasoning_refuses_it():
    model = replace(MODEL, profile=replace(PROFILE, reasoning=False))
    field_names = ReasoningFieldNames("thinking", "thinking.budget_tokens", "disabled", "enabled")
    for reasoning, param in (
        (Reasoning("low", field_names=field_names), "thinking"),
        (Reasoning(budget=2000, field_names=field_names), "thinking.budget_tokens"),
        (Reasoning(is_required=True), "reasoning_effort"),
    ):
        with pytest.raises(UnsupportedParameter) as refused:
            encode(chat(reasoning=reasoning), model)
        assert refused.value.param == param
    assert read_body(chat(reasoning=Reasoning("none")), model) == {}


@pytest.mark.parametrize("effort", ["high", "none"])
def test_a_model_that_no_table_knows_may_reason(effort: str):
    request = chat(reasoning=Reasoning(effort))
    unknown = replace(MODEL, profile=VendorProfile(max_output=8000))
    assert read_body(request, unknown) == read_body(request)


def test_a_tier_that_asks_for_nothing_is_always_taken():
    usual = ask(vendor_options=VendorOptions(service_tier="default"))
    assert read_body(usual) == {"service_tier": "standard_only"}
    assert read_body(usual, replace(MODEL, refused_parameters=frozenset({"service_tier"}))) == {}


def test_embeddings_are_refused():
    with pytest.raises(UnsupportedParameter) as refused:
        AnthropicUpstream().encode_embedding(EmbeddingRequest("m", (RawPrompt("a"),)), MODEL)
    assert refused.value.param == "model"


def test_an_optional_top_p_is_refused_beside_a_temperature() -> None:
    """Some models refuse both together, and the pipeline leaves an optional one out."""
    both = SamplingOptions(temperature=0.2, top_p=0.6)
    for sampling, optional, is_refused in (
        (both, {"top_p"}, True),
        (both, set(), False),
        (SamplingOptions(top_p=0.6), {"top_p"}, False),
        (SamplingOptions(temperature=1.0, top_p=0.6), {"top_p"}, False),
    ):
        request = ask(sampling=sampling, optional=frozenset(optional))
        if is_refused:
            with pytest.raises(UnsupportedParameter, match="top_p"):
                AnthropicUpstream().encode(request, MODEL, NO_ATTRIBUTES)
        else:
            assert json.loads(AnthropicUpstream().encode(request, MODEL, NO_ATTRIBUTES).body)["top_p"] == 0.6
