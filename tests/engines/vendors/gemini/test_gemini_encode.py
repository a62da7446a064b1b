"""Every parameter acts in Gemini's body, or is refused by the caller's name."""

import json
from typing import Any

import pytest

from antiphon.domain.messages import Message, Role, Tool, ToolChoice, Tools
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
    ReasoningFieldNames,
    SamplingOptions,
    SchemaDeclaration,
    SpeechOptions,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.engines.vendors.base import NO_ATTRIBUTES, UpstreamCall, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.parameters import ALL_LOGPROBS, RERANK_NAMES, SPECIAL_CASES, list_names
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.errors import InvalidValue, RequestError, UnsupportedParameter

MODEL = VendorModel("gemini-m", "google", VendorProfile(modalities=("text", "image", "audio")))
THINKER = replace(MODEL, profile=VendorProfile(reasoning=True))
HI = (Message(Role.USER, "hi"),)
CHAT = Conversation(HI)
LOOK = Tool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
WAIT = Tool("wait")


def chat(prompt: Conversation = CHAT, **changes: Any) -> GenerationRequest:
    return GenerationRequest("m", (prompt,), **changes)


def sample(**options: Any) -> GenerationRequest:
    return chat(sampling=SamplingOptions(**options))


def output(**options: Any) -> GenerationRequest:
    return chat(output=Output(**options))


def prompt(**options: Any) -> GenerationRequest:
    return chat(Conversation(HI, **options))


def tools(*given: Tool, **options: Any) -> GenerationRequest:
    return prompt(tools=Tools(given or (LOOK, WAIT), **options))


def constrain(kind: ConstraintKind, source: str = "", **options: Any) -> GenerationRequest:
    return output(constraint=Constraint(kind, source, **options))


def think(model: VendorModel = MODEL, **options: Any) -> Any:
    """The thinkingConfig of a request; None if there is none."""
    body = read(prompt(reasoning=Reasoning(**options)), model)
    return body.get("generationConfig", {}).get("thinkingConfig")


def send(request: GenerationRequest, model: VendorModel = MODEL) -> UpstreamCall:
    return GeminiUpstream().encode(request, model, NO_ATTRIBUTES)


def read(request: GenerationRequest, model: VendorModel = MODEL) -> Any:
    return json.loads(send(request, model).body)


def refuse(request: GenerationRequest, model: VendorModel = MODEL) -> RequestError:
    with pytest.raises(RequestError) as caught:
        send(request, model)
    return caught.value


DECLARED = [
    {"name": "look", "description": "Looks.", "parametersJsonSchema": LOOK.parameters},
    {"name": "wait"},
]
FORCED = {"mode": "ANY", "allowedFunctionNames": ["wait"]}

ACTING: dict[str, tuple[GenerationRequest, tuple[str, ...], object]] = {
    "temperature": (sample(temperature=0.5), ("generationConfig", "temperature"), 0.5),
    "top_p": (sample(top_p=0.9), ("generationConfig", "topP"), 0.9),
    "top_k": (sample(top_k=7), ("generationConfig", "topK"), 7),
    "seed": (sample(seed=11), ("generationConfig", "seed"), 11),
    "presence_penalty": (sample(presence_penalty=0.5), ("generationConfig", "presencePenalty"), 0.5),
    "frequency_penalty": (sample(frequency_penalty=1.5), ("generationConfig", "frequencyPenalty"), 1.5),
    "max_tokens": (output(max_tokens=9), ("generationConfig", "maxOutputTokens"), 9),
    "n": (output(choices=3), ("generationConfig", "candidateCount"), 3),
    "stop": (output(stop=("a", "b")), ("generationConfig", "stopSequences"), ["a", "b"]),
    "logprobs": (output(logprobs=4), ("generationConfig", "logprobs"), 4),
    "response_format": (
        constrain(ConstraintKind.JSON_OBJECT),
        ("generationConfig", "responseMimeType"),
        "application/json",
    ),
    "reasoning_effort": (
        prompt(reasoning=Reasoning("high")),
        ("generationConfig", "thinkingConfig", "thinkingLevel"),
        "HIGH",
    ),
    "thinking_token_budget": (
        prompt(reasoning=Reasoning(budget=77)),
        ("generationConfig", "thinkingConfig", "thinkingBudget"),
        77,
    ),
    "tools": (tools(), ("tools",), [{"functionDeclarations": DECLARED}]),
    "tool_choice": (
        tools(choice=ToolChoice.REQUIRED, allowed=frozenset({"wait"})),
        ("toolConfig", "functionCallingConfig"),
        FORCED,
    ),
    "service_tier": (chat(vendor_options=VendorOptions(service_tier="flex")), ("serviceTier",), "flex"),
}
"""A request for each parameter that Gemini has, and where it acts in the body."""

REFUSED: dict[str, GenerationRequest] = {
    "min_p": sample(min_p=0.5),
    "typical_p": sample(typical_p=0.5),
    "repetition_penalty": sample(repetition_penalty=1.5),
    "logit_bias": sample(logit_bias=((1, 1.0),)),
    "mirostat_target": sample(mirostat=Mirostat()),
    "min_tokens": sample(min_tokens=3),
    "ignore_eos": sample(ignore_eos=True),
    "allowed_token_ids": sample(allowed_token_ids=(1,)),
    "stop_token_ids": output(stop_token_ids=(1,)),
    "best_of": output(best_of=2),
    "echo": output(echo=True),
    "suffix": output(suffix=" end"),
    "logprob_token_ids": output(logprob_token_ids=(1,)),
    "prompt_logprobs": output(prompt_logprobs=1),
    "bad_words": output(bad_words=("a",)),
    "skip_special_tokens": output(show_special=True),
    "return_token_ids": output(token_ids=True),
    "return_tokens_as_token_ids": output(names_by_id=True),
    "stream_options.continuous_usage_stats": output(running_usage=True),
    "truncate_prompt_tokens": output(truncate_prompt=5),
    "include_stop_str_in_output": output(include_stop=True, stop=("a",)),
    "add_special_tokens": prompt(add_special=True),
    "add_generation_prompt": prompt(generation_prompt=False),
    "continue_final_message": prompt(generation_prompt=False, continues=True),
    "chat_template": prompt(template="a"),
    "chat_template_kwargs": prompt(template_values={"a": 1}),
    "documents": prompt(documents=({"a": 1},)),
    "parallel_tool_calls": tools(parallel=False),
    "guided_regex": constrain(ConstraintKind.REGEX, "a", field="guided_regex"),
    "guided_choice": constrain(ConstraintKind.CHOICE, '["a"]', field="guided_choice"),
    "guided_grammar": constrain(ConstraintKind.GBNF, "a", field="guided_grammar"),
    "guided_whitespace_pattern": constrain(ConstraintKind.JSON_OBJECT, whitespace=" *"),
    "cache_salt": chat(cache_salt="a"),
    "priority": chat(priority=1),
    "verbosity": chat(vendor_options=VendorOptions(verbosity="low")),
    "prediction": chat(vendor_options=VendorOptions(prediction=Prediction("a"))),
    "modalities": chat(vendor_options=VendorOptions(modalities=("text", "audio"))),
    "audio": chat(vendor_options=VendorOptions(audio=SpeechOptions("wav", "alloy"))),
}
"""A request for each parameter that Gemini lacks."""

ELSEWHERE = RERANK_NAMES | SPECIAL_CASES.keys() | {"prompt (token ids)", ALL_LOGPROBS, "prompt_cache_key"}
"""Names that no parameter of a chat has, and the one that is ignored by name."""


def test_the_tables_hold_every_parameter():
    assert ACTING.keys() | REFUSED.keys() | ELSEWHERE == list_names()


@pytest.mark.parametrize("name", ACTING)
def test_what_gemini_has_acts(name: str):
    request, path, expected = ACTING[name]
    found = read(request)
    for key in path:
        found = found[key]
    assert found == expected


@pytest.mark.parametrize("name", ACTING)
def test_nothing_acts_that_was_not_asked_for(name: str):
    _, path, _ = ACTING[name]
    found = read(chat())
    for key in path:
        found = found.get(key, {})
    assert found == {}


@pytest.mark.parametrize("name", REFUSED)
def test_what_gemini_lacks_is_refused_by_name(name: str):
    for takes in (frozenset[str](), frozenset({name})):  # the format has no place for it in either case
        error = refuse(REFUSED[name], replace(MODEL, extra_parameters=takes))
        assert isinstance(error, UnsupportedParameter)
        assert error.param == name


def test_raw_prompts_are_refused():
    request = GenerationRequest("m", (RawPrompt("Once upon"),))
    assert refuse(request).param == "prompt"


def test_a_cache_key_is_ignored_by_name():
    assert send(chat(vendor_options=VendorOptions(prompt_cache_key="k"))).ignored == ("prompt_cache_key",)
    assert send(chat()).ignored == ()


def test_the_paths_are_those_of_both_methods():
    assert send(chat()).path == "/models/gemini-m:streamGenerateContent?alt=sse"
    assert send(chat()).is_streamed
    whole = send(chat(is_buffered=True))
    assert whole.path == "/models/gemini-m:generateContent"
    assert not whole.is_streamed


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("models/gemini-m", "/models/gemini-m:generateContent"),
        ("tunedModels/mine", "/tunedModels/mine:generateContent"),
        ("../files?x#y", "/models/..%2Ffiles%3Fx%23y:generateContent"),
        ("a/../../b:c", "/models/a%2F..%2F..%2Fb%3Ac:generateContent"),
    ],
)
def test_a_models_name_stays_one_segment(name: str, path: str):
    assert send(chat(is_buffered=True), VendorModel(name, "google")).path == path


def test_fields_of_the_provider_are_in_every_body():
    body = {"safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"}]}
    assert read(chat(), replace(MODEL, body=body))["safetySettings"] == body["safetySettings"]


@pytest.mark.parametrize("seed", [1 << 31, -(1 << 31) - 1])
def test_a_seed_of_more_than_32_bits_is_refused(seed: int):
    error = refuse(sample(seed=seed))
    assert isinstance(error, InvalidValue)
    assert error.param == "seed"


def test_log_probabilities_without_alternatives():
    assert read(output(logprobs=0))["generationConfig"] == {"responseLogprobs": True}
    assert refuse(output(logprobs=-1)).param == "top_logprobs"


# --- structured output --------------------------------------------------------------------------------------


def declare(source: str, *, strict: bool | None = None, **named: str) -> GenerationRequest:
    declared = SchemaDeclaration(source, strict=strict, **named)
    return constrain(ConstraintKind.JSON_SCHEMA, '{"kept": 1}', declared=declared)


def test_a_schema_is_sent_as_the_caller_declared_it():
    source = '{"type": "object", "properties": {"a": {"type": "string", "pattern": "b"}}}'
    call = send(declare(source, name="person", description="Somebody."))
    told = json.loads(source) | {"title": "person", "description": "Somebody."}
    config = json.loads(call.body)["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": told}
    assert call.ignored == ()


def test_a_name_beside_a_title_is_ignored_by_name():
    call = send(declare('{"title": "Own"}', name="person", description="Somebody."))
    config = json.loads(call.body)["generationConfig"]
    assert config["responseJsonSchema"] == {"title": "Own", "description": "Somebody."}
    assert call.ignored == ("response_format.json_schema.name",)


def test_a_schema_without_a_declaration_is_the_kept_one():
    request = constrain(ConstraintKind.JSON_SCHEMA, '{"type": "string"}')
    assert read(request)["generationConfig"]["responseJsonSchema"] == {"type": "string"}
    assert refuse(constrain(ConstraintKind.JSON_SCHEMA, "{")).param == "response_format"


# --- reasoning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effort", "level"),
    [("minimal", "MINIMAL"), ("low", "LOW"), ("medium", "MEDIUM"), ("high", "HIGH"), ("xhigh", "XHIGH")],
)
def test_efforts_are_levels(effort: str, level: str):
    assert think(effort=effort) == {"thinkingLevel": level, "includeThoughts": True}


def test_no_effort_is_a_budget_of_nothing():
    for options in ({"effort": "none"}, {"budget": 0}):
        assert think(THINKER, **options) == {"thinkingBudget": 0}


def test_thoughts_are_asked_for_where_the_model_thinks():
    assert think() is None
    assert think(THINKER) == {"includeThoughts": True}
    assert think(THINKER, shown=False) is None
    assert think(effort="low", shown=False) == {"thinkingLevel": "LOW"}


def test_efforts_that_gemini_lacks_are_refused_by_name():
    field_names = ReasoningFieldNames("thinking", "thinking.budget_tokens")
    assert refuse(prompt(reasoning=Reasoning("max", field_names=field_names))).param == "thinking"
    both = prompt(reasoning=Reasoning("high", 100, field_names=field_names))
    assert refuse(both).param == "thinking.budget_tokens"


# --- tools --------------------------------------------------------------------------------------------------


def choose(*given: Tool, **options: Any) -> Any:
    """The functionCallingConfig of a request; None if there is none."""
    return read(tools(*given, **options)).get("toolConfig", {}).get("functionCallingConfig")


def test_the_choice_among_tools_is_a_mode():
    wait = frozenset({"wait"})
    assert choose() is None
    assert choose(choice=ToolChoice.NONE) == {"mode": "NONE"}
    assert choose(choice=ToolChoice.NONE, allowed=wait) == {"mode": "NONE"}
    assert choose(choice=ToolChoice.REQUIRED) == {"mode": "ANY"}
    assert choose(allowed=wait) == {"mode": "VALIDATED", "allowedFunctionNames": ["wait"]}


def test_strict_tools_are_validated():
    strict = replace(LOOK, strict=True)
    assert choose(strict, WAIT) == {"mode": "VALIDATED"}
    assert choose(strict, choice=ToolChoice.REQUIRED) == {"mode": "ANY"}


@pytest.mark.parametrize(
    ("tier", "sent"), [("auto", None), ("default", "standard"), ("priority", "priority")]
)
def test_service_tiers_have_geminis_names(tier: str, sent: str | None):
    assert read(chat(vendor_options=VendorOptions(service_tier=tier))).get("serviceTier") == sent


def test_another_service_tier_is_refused():
    assert refuse(chat(vendor_options=VendorOptions(service_tier="scale"))).param == "service_tier"
