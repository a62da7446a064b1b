"""Every parameter acts in the body that OpenAI's format has, or is refused by name."""

import json
from typing import Any

import pytest

from antiphon.domain.messages import (
    Content,
    MediaContent,
    MediaKind,
    Message,
    Role,
    TextContent,
    Tool,
    ToolCall,
    ToolChoice,
    Tools,
)
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Mirostat,
    Output,
    Prediction,
    RawPrompt,
    Reasoning,
    SamplingOptions,
    SchemaDeclaration,
    SpeechOptions,
    Truncation,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.engines.vendors.base import NO_ATTRIBUTES, Attributes, UpstreamCall, VendorModel
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.openai.encode import CHAT_PARAMETERS, TEXT_PARAMETERS, UNREADABLE_RESULTS
from antiphon.engines.vendors.parameters import ALL_LOGPROBS, RERANK_NAMES, SPECIAL_CASES, list_names
from antiphon.engines.vendors.profiles import VendorProfile, find_preset
from antiphon.errors import RequestError, UnsupportedParameter

HI = (Message(Role.USER, "hi"),)
PROFILE = VendorProfile(modalities=("text", "image", "audio"), output_modalities=("text", "audio"))
BARE = VendorModel("m-1", "bare", PROFILE)
LOOK = Tool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}, strict=True)
WAIT = Tool("wait")

Case = tuple[GenerationRequest, dict[str, Any]]


def build_model(preset: str) -> VendorModel:
    """A model of a preset's provider."""
    found = find_preset(preset)
    assert found is not None
    return VendorModel(
        "m-1",
        preset,
        PROFILE,
        extra_parameters=frozenset(found.takes),
        refused_parameters=frozenset(found.refuses),
        token_limit_name=found.token_limit,
        reasoning_field=found.reasoning_field,
        renames=found.renames,
    )


VLLM = build_model("vllm")


def chat(**changes: Any) -> GenerationRequest:
    return GenerationRequest("m", (Conversation(HI),), **changes)


def prompt(**options: Any) -> GenerationRequest:
    return GenerationRequest("m", (Conversation(HI, **options),))


def text(*prompts: RawPrompt, **options: Any) -> GenerationRequest:
    return GenerationRequest("m", prompts or (RawPrompt("Once"),), output=Output(**options))


def sample(**options: Any) -> GenerationRequest:
    return chat(sampling=SamplingOptions(**options))


def output(**options: Any) -> GenerationRequest:
    return chat(output=Output(**options))


def constrain(kind: ConstraintKind, source: str = "", field: str = "response_format") -> GenerationRequest:
    return output(constraint=Constraint(kind, source, field=field))


def tools(**options: Any) -> GenerationRequest:
    return prompt(tools=Tools((LOOK, WAIT), **options))


DECLARED = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": LOOK.parameters,
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "wait"}},
]

CHATS: dict[str, Case] = {
    "temperature": (sample(temperature=0.5), {"temperature": 0.5}),
    "top_p": (sample(top_p=0.9), {"top_p": 0.9}),
    "top_k": (sample(top_k=7), {"top_k": 7}),
    "min_p": (sample(min_p=0.25), {"min_p": 0.25}),
    "typical_p": (sample(typical_p=0.5), {"typical_p": 0.5}),
    "repetition_penalty": (sample(repetition_penalty=1.5), {"repetition_penalty": 1.5}),
    "presence_penalty": (sample(presence_penalty=0.5), {"presence_penalty": 0.5}),
    "frequency_penalty": (sample(frequency_penalty=1.5), {"frequency_penalty": 1.5}),
    "logit_bias": (sample(logit_bias=((7, -1.5),)), {"logit_bias": {"7": -1.5}}),
    "seed": (sample(seed=11), {"seed": 11}),
    "mirostat_target": (
        sample(mirostat=Mirostat(2.0, 0.25)),
        {"mirostat_target": 2.0, "mirostat_lr": 0.25},
    ),
    "min_tokens": (sample(min_tokens=3), {"min_tokens": 3}),
    "ignore_eos": (sample(ignore_eos=True), {"ignore_eos": True}),
    "allowed_token_ids": (sample(allowed_token_ids=(1, 2)), {"allowed_token_ids": [1, 2]}),
    "max_tokens": (output(max_tokens=9), {"max_tokens": 9}),
    "n": (output(choices=3), {"n": 3}),
    "stop": (output(stop=("a", "b")), {"stop": ["a", "b"]}),
    "stop_token_ids": (output(stop_token_ids=(1,)), {"stop_token_ids": [1]}),
    "logprobs": (output(logprobs=4), {"logprobs": True, "top_logprobs": 4}),
    "echo": (output(echo=True), {"echo": True}),
    "bad_words": (output(bad_words=("a",)), {"bad_words": ["a"]}),
    "skip_special_tokens": (output(show_special=True), {"skip_special_tokens": False}),
    "truncate_prompt_tokens": (
        output(truncate_prompt=5, truncation=Truncation.RIGHT),
        {"truncate_prompt_tokens": 5, "truncation_side": "right"},
    ),
    "include_stop_str_in_output": (
        output(include_stop=True, stop=("a",)),
        {"include_stop_str_in_output": True, "stop": ["a"]},
    ),
    "response_format": (
        constrain(ConstraintKind.JSON_OBJECT),
        {"response_format": {"type": "json_object"}},
    ),
    "guided_regex": (
        constrain(ConstraintKind.REGEX, "a+", "guided_regex"),
        {"structured_outputs": {"regex": "a+"}},
    ),
    "guided_choice": (
        constrain(ConstraintKind.CHOICE, '["a","b"]', "guided_choice"),
        {"structured_outputs": {"choice": ["a", "b"]}},
    ),
    "guided_grammar": (
        constrain(ConstraintKind.LARK, "start: A", "guided_grammar"),
        {"structured_outputs": {"grammar": "start: A"}},
    ),
    "reasoning_effort": (prompt(reasoning=Reasoning("high")), {"reasoning_effort": "high"}),
    "thinking_token_budget": (prompt(reasoning=Reasoning(budget=77)), {"thinking_token_budget": 77}),
    "tools": (tools(), {"tools": DECLARED}),
    "tool_choice": (
        tools(choice=ToolChoice.REQUIRED, allowed=frozenset({"wait"})),
        {"tools": DECLARED, "tool_choice": {"type": "function", "function": {"name": "wait"}}},
    ),
    "parallel_tool_calls": (tools(parallel=False), {"tools": DECLARED, "parallel_tool_calls": False}),
    "add_special_tokens": (prompt(add_special=True), {"add_special_tokens": True}),
    "add_generation_prompt": (prompt(generation_prompt=False), {"add_generation_prompt": False}),
    "continue_final_message": (
        prompt(generation_prompt=False, continues=True),
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "chat_template": (prompt(template="a"), {"chat_template": "a"}),
    "chat_template_kwargs": (prompt(template_values={"a": 1}), {"chat_template_kwargs": {"a": 1}}),
    "documents": (prompt(documents=({"a": 1},)), {"documents": [{"a": 1}]}),
    "cache_salt": (chat(cache_salt="a"), {"cache_salt": "a"}),
    "priority": (chat(priority=-1), {"priority": -1}),
    "verbosity": (chat(vendor_options=VendorOptions(verbosity="low")), {"verbosity": "low"}),
    "service_tier": (chat(vendor_options=VendorOptions(service_tier="flex")), {"service_tier": "flex"}),
    "prediction": (
        chat(vendor_options=VendorOptions(prediction=Prediction("Once"))),
        {"prediction": {"type": "content", "content": "Once"}},
    ),
    "modalities": (
        chat(vendor_options=VendorOptions(modalities=("text", "audio"))),
        {"modalities": ["text", "audio"]},
    ),
    "audio": (
        chat(vendor_options=VendorOptions(audio=SpeechOptions("wav", "alloy"))),
        {"audio": {"format": "wav", "voice": "alloy"}},
    ),
}
"""A chat for each parameter, and what it adds to the body where the vendor takes it."""

TEXTS: dict[str, Case] = {
    "max_tokens": (text(max_tokens=9), {"max_tokens": 9}),
    "n": (text(choices=2), {"n": 2}),
    "best_of": (text(best_of=3), {"best_of": 3}),
    "echo": (text(echo=True), {"echo": True}),
    "suffix": (text(suffix=" end"), {"suffix": " end"}),
    "stop": (text(stop=("a",)), {"stop": ["a"]}),
    "logprobs": (text(logprobs=0), {"logprobs": 1}),
    "prompt (token ids)": (text(RawPrompt(tokens=(1, 2))), {"prompt": [1, 2]}),
    "add_special_tokens": (text(RawPrompt("a", add_special=False)), {"add_special_tokens": False}),
}
"""The same for text completions, as far as they differ."""

UNREAD: dict[str, GenerationRequest] = {
    "guided_whitespace_pattern": output(constraint=Constraint(ConstraintKind.JSON_OBJECT, whitespace=" *")),
    "logprob_token_ids": output(logprobs=1, logprob_token_ids=(1,)),
    "prompt_logprobs": output(prompt_logprobs=1),
    "return_token_ids": output(token_ids=True),
    "return_tokens_as_token_ids": output(names_by_id=True),
    "stream_options.continuous_usage_stats": output(running_usage=True),
}
"""What no provider is asked for."""

ELSEWHERE = (
    RERANK_NAMES
    | SPECIAL_CASES.keys()
    | {ALL_LOGPROBS, "prompt_cache_key", "best_of", "suffix", "prompt (token ids)"}
)
"""Names that no chat has, and the one that changes no answer."""


def send(request: GenerationRequest, model: VendorModel, who: Attributes = NO_ATTRIBUTES) -> UpstreamCall:
    return OpenAIUpstream().encode(request, model, who)


def read(request: GenerationRequest, model: VendorModel) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(send(request, model).body)
    return body


def refuse(request: GenerationRequest, model: VendorModel) -> RequestError:
    with pytest.raises(RequestError) as caught:
        send(request, model)
    return caught.value


def require_acts(name: str, case: Case, plain: GenerationRequest, model: VendorModel) -> None:
    """The parameter adds to the body exactly what the table says, or is refused by its name."""
    request, expected = case
    is_text = isinstance(request.prompts[0], RawPrompt)
    takes = (
        (TEXT_PARAMETERS if is_text else CHAT_PARAMETERS) | model.extra_parameters
    ) - model.refused_parameters
    if name in takes:
        before, after = read(plain, model), read(request, model)
        renamed = {model.renames.get(key, key): value for key, value in expected.items()}
        assert after == before | renamed
    else:
        error = refuse(request, model)
        assert isinstance(error, UnsupportedParameter)
        assert error.param == name and name in error.message


def test_the_tables_hold_every_parameter():
    assert CHATS.keys() | UNREAD.keys() | ELSEWHERE == list_names()
    assert UNREAD.keys() == UNREADABLE_RESULTS


@pytest.mark.parametrize("model", [BARE, VLLM], ids=lambda model: model.provider)
@pytest.mark.parametrize("name", CHATS)
def test_a_chats_parameter_acts_or_is_refused(name: str, model: VendorModel):
    require_acts(name, CHATS[name], chat(), model)


@pytest.mark.parametrize("model", [BARE, VLLM], ids=lambda model: model.provider)
@pytest.mark.parametrize("name", TEXTS)
def test_a_texts_parameter_acts_or_is_refused(name: str, model: VendorModel):
    plain = text(RawPrompt("a")) if name == "add_special_tokens" else text()
    require_acts(name, TEXTS[name], plain, model)


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_back_is_refused_in_any_case(name: str):
    for takes in (frozenset[str](), frozenset({name})):
        error = refuse(UNREAD[name], replace(BARE, extra_parameters=takes))
        assert error.param == name


def test_every_chat_parameter_can_be_taken():
    every = replace(BARE, extra_parameters=list_names())
    for name, (request, expected) in CHATS.items():
        assert expected.items() <= read(request, every).items(), name


def test_renamed_parameters_have_the_vendors_name():
    taken = frozenset({"guided_regex"})
    model = replace(BARE, extra_parameters=taken, renames={"guided_regex": "regex"})
    body = read(constrain(ConstraintKind.REGEX, "a+", "structured_outputs.regex"), model)
    assert body["regex"] == "a+" and "structured_outputs" not in body
    body = read(output(include_stop=True, stop=("a",)), build_model("sglang"))
    assert body["no_stop_trim"] is True
    assert read(sample(seed=7), build_model("mistral"))["random_seed"] == 7
    limited = read(output(max_tokens=9), build_model("openai"))
    assert limited["max_completion_tokens"] == 9 and "max_tokens" not in limited


def test_a_plain_request_says_nothing_else():
    assert read(replace_request(chat(), is_buffered=True), BARE) == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "hi"}],
    }
    assert read(text(), BARE) == {
        "model": "m-1",
        "prompt": "Once",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    silent = read(chat(), replace(BARE, asks_usage=False))
    assert silent["stream"] is True and "stream_options" not in silent


def test_several_prompts_are_a_list():
    body = read(text(RawPrompt("a"), RawPrompt(tokens=(1,))), BARE)
    assert body["prompt"] == ["a", [1]]


def test_the_caller_is_named_and_the_presets_body_wins():
    call = send(chat(), replace(BARE, body={"provider": {"x": 1}}), Attributes("user-7"))
    body = json.loads(call.body)
    assert body["user"] == "user-7" and body["provider"] == {"x": 1}
    assert call.headers == ()


def test_tool_choices_have_openais_forms():
    some = frozenset({"look", "wait"})
    auto = {"tools": [{"type": "function", "function": {"name": name}} for name in sorted(some)]}
    allowed = {"type": "allowed_tools", "allowed_tools": auto | {"mode": "auto"}}
    assert read(tools(choice=ToolChoice.NONE), BARE)["tool_choice"] == "none"
    assert read(tools(choice=ToolChoice.REQUIRED), BARE)["tool_choice"] == "required"
    assert read(tools(allowed=some), BARE)["tool_choice"] == allowed


def test_a_schema_goes_out_as_it_was_declared():
    declared = SchemaDeclaration('{"type": "object", "title": "x"}', "points", "All points.", strict=False)
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "object"}', declared=declared)
    shape = read(output(constraint=constraint), BARE)["response_format"]
    assert shape == {
        "type": "json_schema",
        "json_schema": {
            "name": "points",
            "description": "All points.",
            "strict": False,
            "schema": {"type": "object", "title": "x"},
        },
    }
    bare = read(constrain(ConstraintKind.JSON_SCHEMA, '{"type": "object"}'), BARE)["response_format"]
    assert bare["json_schema"] == {"name": "answer", "schema": {"type": "object"}}
    assert refuse(constrain(ConstraintKind.JSON_SCHEMA, "{"), BARE).param == "response_format"


IMAGE = MediaContent(MediaKind.IMAGE, "image/png", "iVBORw==", detail="low", field="messages[0].content[1]")
RECORDING = MediaContent(MediaKind.AUDIO, "audio/mpeg", "AAAA", field="messages[0].content[2]")


def show(*parts: MediaContent) -> GenerationRequest:
    content: tuple[Content, ...] = (TextContent("see"), *parts)
    return GenerationRequest("m", (Conversation((Message(Role.USER, "see", content=content),)),))


def test_images_and_recordings_keep_their_place():
    assert read(show(IMAGE, RECORDING), BARE)["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw==", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
    ]


def test_media_that_the_model_lacks_is_refused_by_its_place():
    deaf = replace(BARE, profile=VendorProfile())
    assert refuse(show(IMAGE), deaf).param == IMAGE.field
    assert refuse(show(RECORDING), deaf).param == RECORDING.field
    assert refuse(show(replace_media(RECORDING, media_type="audio/ogg")), BARE).param == RECORDING.field


def test_addresses_are_passed_on_only_if_allowed():
    address = replace_media(IMAGE, media_type="", data="", url="https://example.org/a.png", detail=None)
    assert refuse(show(address), BARE).param == IMAGE.field
    allowed = replace(BARE, passes_addresses=True)
    part = read(show(address), allowed)["messages"][0]["content"][1]
    assert part == {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


CALL = ToolCall("call_1", "look", '{"at": "x"}', signature="sig")
TURN = Message(
    Role.ASSISTANT,
    "",
    tool_calls=(CALL,),
    reasoning="hm",
    reasoning_field="reasoning",
    thinking_blocks=({"type": "thinking", "signature": "s"},),
)
HISTORY = GenerationRequest(
    "m",
    (Conversation((*HI, TURN, Message(Role.TOOL, "seen", tool_call_id="call_1"))),),
)


def test_a_vendors_own_state_is_given_back():
    model = replace(
        BARE,
        reasoning_field="reasoning_content",
        extra_parameters=frozenset({"extra_content", "thinking_blocks"}),
    )
    call = send(HISTORY, model)
    _, assistant, result = json.loads(call.body)["messages"]
    assert call.ignored == ()
    assert assistant == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "thinking_blocks": [{"type": "thinking", "signature": "s"}],
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "look", "arguments": '{"at": "x"}'},
                "extra_content": {"google": {"thought_signature": "sig"}},
            }
        ],
    }
    assert result == {"role": "tool", "content": "seen", "tool_call_id": "call_1"}


SPOKE = Message(Role.ASSISTANT, "", speech_id="audio_1")


def talk(*messages: Message, **vendor_options: Any) -> GenerationRequest:
    return GenerationRequest(
        "m", (Conversation((*HI, *messages, *HI)),), vendor_options=VendorOptions(**vendor_options)
    )


def test_speech_returns_by_its_id_to_a_model_that_speaks():
    call = send(talk(SPOKE), BARE)
    spoken = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert (json.loads(call.body)["messages"][1], call.ignored) == (spoken, ())


def test_a_custom_voice_is_an_object():
    body = read(talk(audio=SpeechOptions("wav", "voice_1", is_custom=True)), BARE)
    assert body["audio"]["voice"] == {"id": "voice_1"}


def test_speech_of_a_model_that_gives_text_is_refused_or_named():
    silent = replace(BARE, profile=VendorProfile(modalities=("text", "audio")))
    assert refuse(talk(SPOKE), silent).param == "messages[1].audio"
    for vendor_options in ({"modalities": ("audio",)}, {"audio": SpeechOptions("wav", "alloy")}):
        assert refuse(talk(**vendor_options), silent).param == "modalities"
    assert read(talk(modalities=("text",)), silent).keys() == read(chat(), silent).keys()
    call = send(talk(Message(Role.ASSISTANT, "Hm", speech_id="audio_1")), silent)
    assert json.loads(call.body)["messages"][1] == {"role": "assistant", "content": "Hm"}
    assert call.ignored == ("messages[1].audio",)


def test_state_that_the_vendor_lacks_is_named():
    call = send(HISTORY, BARE)
    assistant = json.loads(call.body)["messages"][1]
    assert assistant.keys() == {"role", "content", "tool_calls"}
    assert assistant["tool_calls"][0].keys() == {"id", "type", "function"}
    assert call.ignored == (
        "messages[1].tool_calls.extra_content",
        "messages[1].reasoning",
        "messages[1].thinking_blocks",
    )


def replace_request(request: GenerationRequest, **changes: Any) -> GenerationRequest:
    return GenerationRequest(request.model, request.prompts, **changes)


def replace_media(part: MediaContent, **changes: Any) -> MediaContent:
    names = part.__struct_fields__
    return MediaContent(**{name: getattr(part, name) for name in names} | changes)
