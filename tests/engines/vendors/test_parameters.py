"""What a vendor lacks is refused by the caller's own name of it."""

import msgspec
import pytest

from antiphon.domain.messages import Message, Role, Tool, ToolChoice, Tools
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Mirostat,
    Output,
    Overflow,
    Prediction,
    RawPrompt,
    Reasoning,
    ReasoningFieldNames,
    SamplingOptions,
    SpeechOptions,
    VendorOptions,
)
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import NO_ATTRIBUTES, UpstreamDialect, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.parameters import (
    ALL_LOGPROBS,
    list_names,
    list_parameters,
    list_sampling_options,
    require_supported,
)
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.errors import UnsupportedParameter

TAKEN = frozenset({"response_format", "temperature"})


def request_of(prompt: Conversation | RawPrompt | None = None, **changes: object) -> GenerationRequest:
    return GenerationRequest("m", (prompt or Conversation(()),), **changes)  # type: ignore[arg-type]


def refuse(request: GenerationRequest, model: VendorModel) -> str | None:
    with pytest.raises(UnsupportedParameter) as caught:
        require_supported(request, TAKEN, model)
    return caught.value.param


def refuse_chat(prompt: Conversation, model: VendorModel) -> str | None:
    with pytest.raises(UnsupportedParameter) as caught:
        OpenAIUpstream().encode(request_of(prompt), model, NO_ATTRIBUTES)
    return caught.value.param


def constrain(kind: ConstraintKind, field: str) -> GenerationRequest:
    return request_of(output=Output(constraint=Constraint(kind, "a", field=field)))


@pytest.mark.parametrize(
    ("kind", "field", "name"),
    [
        (ConstraintKind.REGEX, "guided_regex", "guided_regex"),
        (ConstraintKind.CHOICE, "structured_outputs.choice", "guided_choice"),
        (ConstraintKind.GBNF, "response_format.grammar", "guided_grammar"),
    ],
)
def test_a_constraint_is_taken_under_any_dialects_name(kind: ConstraintKind, field: str, name: str):
    require_supported(
        constrain(kind, field), TAKEN, VendorModel("m", "p", extra_parameters=frozenset({name}))
    )


def test_a_constraint_is_refused_by_the_callers_name():
    assert refuse(constrain(ConstraintKind.REGEX, "guided_regex"), VendorModel("m", "p")) == "guided_regex"


def test_an_effort_is_refused_by_the_callers_name():
    reasoning = Reasoning(effort="enabled", field_names=ReasoningFieldNames("thinking"))
    request = request_of(Conversation((), reasoning=reasoning))
    assert refuse(request, VendorModel("m", "p")) == "thinking"
    taken = frozenset({"reasoning_effort"})
    require_supported(request, TAKEN, VendorModel("m", "p", extra_parameters=taken))


def test_a_provider_can_take_objects_and_refuse_schemas():
    model = VendorModel("m", "p", refused_parameters=frozenset({"response_format.json_schema"}))
    require_supported(constrain(ConstraintKind.JSON_OBJECT, "response_format"), TAKEN, model)
    assert refuse(constrain(ConstraintKind.JSON_SCHEMA, "response_format"), model) == "response_format"


def test_a_provider_can_refuse_names_in_tool_choice():
    model = VendorModel("m", "p", refused_parameters=frozenset({"tool_choice.function"}))
    both, one = (Tool("look"), Tool("wait")), (Tool("look"),)
    named = frozenset({"look"})
    for tools in (both, one):
        chosen = Conversation((), tools=Tools(tools, ToolChoice.REQUIRED, allowed=named))
        if tools is both:
            assert refuse_chat(chosen, model) == "tool_choice"
        else:
            body = msgspec.json.decode(OpenAIUpstream().encode(request_of(chosen), model, NO_ATTRIBUTES).body)
            assert body["tool_choice"] == "required"
    for choice in ToolChoice:
        OpenAIUpstream().encode(request_of(Conversation((), tools=Tools(both, choice))), model, NO_ATTRIBUTES)


def test_a_provider_that_continues_answers_is_not_sent_one():
    model = VendorModel("m", "p", refused_parameters=frozenset({"messages (assistant last)"}))
    asked, answered = Message(Role.USER, "a"), Message(Role.ASSISTANT, "b")
    assert refuse_chat(Conversation((asked, answered)), model) == "messages"
    OpenAIUpstream().encode(request_of(Conversation((answered, asked))), model, NO_ATTRIBUTES)
    OpenAIUpstream().encode(request_of(Conversation((asked, answered))), VendorModel("m", "p"), NO_ATTRIBUTES)


def test_the_whole_vocabulary_is_asked_only_where_it_is_taken():
    chat, text = (
        request_of(output=Output(logprobs=-1)),
        request_of(RawPrompt("a"), output=Output(logprobs=-1)),
    )
    for request, param in ((chat, "top_logprobs"), (text, "logprobs")):
        with pytest.raises(UnsupportedParameter) as caught:
            OpenAIUpstream().encode(request, VendorModel("m", "p"), NO_ATTRIBUTES)
        assert caught.value.param == param
    model = VendorModel("m", "p", extra_parameters=frozenset({ALL_LOGPROBS}))
    assert b'"top_logprobs":-1' in OpenAIUpstream().encode(chat, model, NO_ATTRIBUTES).body
    assert b'"logprobs":-1' in OpenAIUpstream().encode(text, model, NO_ATTRIBUTES).body


def test_a_refusal_of_the_provider_goes_before_the_wire_format():
    request = request_of(sampling=SamplingOptions(temperature=0.5))
    require_supported(request, TAKEN, VendorModel("m", "p"))
    assert refuse(request, VendorModel("m", "p", refused_parameters=TAKEN)) == "temperature"


@pytest.mark.parametrize(
    ("output", "param"),
    [
        (Output(names_by_id=True), "return_tokens_as_token_ids"),
        (Output(running_usage=True), "stream_options.continuous_usage_stats"),
        (Output(include_stop=True, stop=("a",)), "stop"),
    ],
)
def test_what_needs_tokens_is_refused(output: Output, param: str):
    assert refuse(request_of(output=output), VendorModel("m", "p")) == param


def test_what_a_dialect_writes_into_every_request_is_taken():
    fireworks = Output(
        include_stop=True, overflow=Overflow.SHORTEN, max_tokens=200, is_default_max_tokens=True
    )
    usual = SamplingOptions(temperature=1.0, top_p=1.0, presence_penalty=0.0, repetition_penalty=1.0)
    vendor_options = VendorOptions("medium", "auto", "k")
    request = request_of(output=fireworks, sampling=usual, vendor_options=vendor_options)
    require_supported(request, frozenset(), VendorModel("m", "p"))


def test_every_name_that_a_request_asks_for_is_listed():
    output = Output(
        max_tokens=1,
        choices=2,
        stop=("a",),
        stop_token_ids=(1,),
        best_of=3,
        echo=True,
        logprobs=1,
        logprob_token_ids=(1,),
        prompt_logprobs=1,
        bad_words=("a",),
        show_special=True,
        token_ids=True,
        names_by_id=True,
        running_usage=True,
        truncate_prompt=1,
        include_stop=True,
        overflow=Overflow.SHORTEN,
    )
    sampling = SamplingOptions(temperature=1.0, top_k=3, mirostat=Mirostat(), allowed_token_ids=(1,))
    raw = request_of(RawPrompt(tokens=(1,), add_special=False), output=output, sampling=sampling, priority=1)
    chat = request_of(
        Conversation(
            (Message(Role.USER, "a"),), continues=True, template="a", documents=(), template_values={"a": 1}
        ),
        vendor_options=VendorOptions(
            "low", "flex", "k", ("text", "audio"), SpeechOptions("wav", "alloy"), prediction=Prediction("a")
        ),
        cache_salt="s",
    )
    assert {*list_parameters(raw), *list_parameters(chat)} <= list_names()


def test_a_model_without_temperature_still_takes_its_default():
    model = VendorModel("m", "p", refused_parameters=TAKEN)
    require_supported(request_of(sampling=SamplingOptions(temperature=1.0)), TAKEN, model)
    assert refuse(request_of(sampling=SamplingOptions(temperature=0.0)), model) == "temperature"


def test_what_only_says_our_default_is_sent_where_it_is_taken():
    sampling = SamplingOptions(temperature=1.0, top_p=1.0, top_k=0, seed=7)
    assert list(list_sampling_options(sampling)) == ["seed"]
    assert set(list_sampling_options(sampling, frozenset({"temperature", "top_p"}))) == {
        "temperature",
        "top_p",
        "seed",
    }
    call = OpenAIUpstream().encode(
        request_of(Conversation((Message(Role.USER, "a"),)), sampling=sampling),
        VendorModel("m", "one", refused_parameters=frozenset({"top_p"})),
        NO_ATTRIBUTES,
    )
    body = msgspec.json.decode(call.body)
    assert body["temperature"] == 1.0 and body["seed"] == 7
    assert "top_p" not in body and "top_k" not in body


@pytest.mark.parametrize("upstream", [OpenAIUpstream(), AnthropicUpstream(), GeminiUpstream()])
def test_several_conversations_are_refused(upstream: UpstreamDialect):
    chat = Conversation((Message(Role.USER, "a"),))
    request = GenerationRequest("m", (chat, chat), output=Output(max_tokens=9))
    with pytest.raises(UnsupportedParameter, match="one conversation at a time") as caught:
        upstream.encode(request, VendorModel("m", "p"), NO_ATTRIBUTES)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("upstream", [OpenAIUpstream(), AnthropicUpstream(), GeminiUpstream()])
def test_reasoning_that_nobody_shows_is_refused(upstream: UpstreamDialect):
    reasoning = Reasoning(is_required=True, field_names=ReasoningFieldNames("include_thinking"))
    chat = Conversation((Message(Role.USER, "a"),), reasoning=reasoning)
    request = GenerationRequest("m", (chat,), output=Output(max_tokens=9))
    silent = VendorModel("m", "p", VendorProfile(reasoning=False), reasoning_field="reasoning")
    with pytest.raises(UnsupportedParameter) as caught:
        upstream.encode(request, silent, NO_ATTRIBUTES)
    assert caught.value.param == "include_thinking"


@pytest.mark.parametrize("upstream", [OpenAIUpstream(), AnthropicUpstream(), GeminiUpstream()])
def test_earlier_speech_is_refused_or_named(upstream: UpstreamDialect):
    asked, model = Message(Role.USER, "a"), VendorModel("m", "p")
    for text in ("", "Hm"):
        chat = Conversation((asked, Message(Role.ASSISTANT, text, speech_id="a"), asked))
        request = GenerationRequest("m", (chat,), output=Output(max_tokens=9))
        if text:
            (named,) = upstream.encode(request, model, NO_ATTRIBUTES).ignored
            assert named in ("messages[].audio", "messages[1].audio")
            continue
        with pytest.raises(UnsupportedParameter, match="send its transcript as content") as caught:
            upstream.encode(request, model, NO_ATTRIBUTES)
        assert caught.value.param == "messages[1].audio"


def test_reasoning_of_a_vendor_that_keeps_it_is_refused():
    reasoning = Reasoning(is_required=True, field_names=ReasoningFieldNames("include_thinking"))
    request = request_of(Conversation((Message(Role.USER, "a"),), reasoning=reasoning))
    OpenAIUpstream().encode(request, VendorModel("m", "p", reasoning_field="reasoning"), NO_ATTRIBUTES)
    with pytest.raises(UnsupportedParameter, match="shows no reasoning") as caught:
        OpenAIUpstream().encode(request, VendorModel("m", "p"), NO_ATTRIBUTES)
    assert caught.value.param == "include_thinking"


def test_gemini_shows_reasoning_that_is_wanted():
    request = request_of(Conversation((Message(Role.USER, "a"),), reasoning=Reasoning(is_required=True)))
    body = msgspec.json.decode(GeminiUpstream().encode(request, VendorModel("m", "p"), NO_ATTRIBUTES).body)
    assert body["generationConfig"]["thinkingConfig"] == {"includeThoughts": True}
