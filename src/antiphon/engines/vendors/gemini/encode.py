"""Translates a request to Gemini's generateContent."""

from typing import Any
from urllib.parse import quote

import msgspec

from antiphon.domain.messages import Tool, ToolChoice, Tools
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Reasoning,
)
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import replace
from antiphon.domain.vendor_fields import (
    PROMPT_CACHE_KEY,
    SCHEMA_DESCRIPTION,
    SCHEMA_NAME,
    SPEECH_ID,
    list_cache_marks,
)
from antiphon.engines.vendors.base import UpstreamCall, VendorModel
from antiphon.engines.vendors.caller_extras import add_extra_fields, read_extra_headers
from antiphon.engines.vendors.gemini.contents import encode_messages
from antiphon.engines.vendors.parameters import list_sampling, require_supported
from antiphon.errors import InvalidValue, UnsupportedParameter

Body = dict[str, Any]

SAMPLING = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
"""Gemini's names of sampling options."""

PARAMETERS = frozenset(SAMPLING) | frozenset(
    "max_tokens n stop logprobs response_format reasoning_effort thinking_token_budget tools tool_choice "
    "service_tier".split()
)
"""The parameters of generateContent."""

LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "XHIGH",
}
"""Gemini's levels of thinking, by efforts."""

NO_EFFORT = "none"

SERVICE_TIERS = {"default": "standard", "standard": "standard", "flex": "flex", "priority": "priority"}
"""Gemini's tiers, by OpenAI's names. For `auto`, no tier is sent."""

SEEDS = range(-(1 << 31), 1 << 31)
"""Seeds that Gemini takes."""

RESOURCES = ("models/", "tunedModels/")
"""The collections of models, which begin a model's full name. The first one is the default."""

JSON = msgspec.json.Encoder()


def build_path(model: str, method: str) -> str:
    """Returns the path of a method of a model. The model's name is quoted, so that it is one segment."""
    collection = next((resource for resource in RESOURCES if model.startswith(resource)), RESOURCES[0])
    return f"/{collection}{quote(model.removeprefix(collection), safe='')}:{method}"


def encode_request(request: GenerationRequest, model: VendorModel) -> UpstreamCall:
    """Translates a request. Raises a RequestError that names the field that Gemini lacks."""
    prompt = request.prompts[0]
    if not isinstance(prompt, Conversation):
        raise UnsupportedParameter(
            f"prompt is not supported by the model {model.name} of the provider {model.provider}, which "
            "takes only chats; send messages",
            param="prompt",
        )
    # This format cannot express extra parameters, even if the operator's settings allow them.
    supported = require_supported(request, PARAMETERS, replace(model, extra_parameters=frozenset()))
    ignored = [] if request.vendor_options.prompt_cache_key is None else [PROMPT_CACHE_KEY]
    ignored += list_cache_marks(prompt)
    if any(message.speech_id is not None for message in prompt.messages):
        ignored.append(SPEECH_ID)
    body = encode_messages(prompt.messages, ignored)
    body |= _encode_tools(prompt.tools) if prompt.tools is not None else {}
    config = _encode_config(request, prompt, model, ignored)
    config |= _encode_sampling(request.sampling, supported)
    if config:
        body["generationConfig"] = config
    if (tier := _encode_tier(request.vendor_options.service_tier)) is not None:
        body["serviceTier"] = tier
    body |= model.body
    add_extra_fields(body, request, model)
    headers = read_extra_headers(request, model)
    method = "generateContent" if request.is_buffered else "streamGenerateContent?alt=sse"
    path = build_path(model.name, method)
    ignored_names = tuple(dict.fromkeys(ignored))
    return UpstreamCall(path, JSON.encode(body), not request.is_buffered, headers, ignored_names)


def _encode_config(
    request: GenerationRequest, prompt: Conversation, model: VendorModel, ignored: list[str]
) -> Body:
    """Returns `generationConfig`."""
    output = request.output
    options: Body = {
        "maxOutputTokens": output.max_tokens,
        "candidateCount": output.choices if output.choices > 1 else None,
        "stopSequences": output.stop or None,
        "thinkingConfig": _encode_reasoning(prompt.reasoning, model) or None,
    }
    config = {name: value for name, value in options.items() if value is not None}
    if output.logprobs is not None:
        config |= _encode_logprobs(output.logprobs)
    if output.constraint is not None:
        config |= _encode_constraint(output.constraint, ignored)
    return config


def _encode_sampling(sampling: SamplingOptions, supported: frozenset[str]) -> Body:
    """Returns the sampling options of the caller. Raises InvalidValue for a seed that is too large."""
    if sampling.seed is not None and sampling.seed not in SEEDS:
        raise InvalidValue(f"seed must be from {SEEDS[0]} to {SEEDS[-1]} for Gemini", param="seed")
    sent_names = list_sampling(sampling, supported if sampling.top_k else supported - {"top_k"})
    return {SAMPLING[name]: getattr(sampling, name) for name in sent_names}


def _encode_logprobs(alternatives: int) -> Body:
    """Asks for log-probabilities."""
    return {"responseLogprobs": True} | ({"logprobs": alternatives} if alternatives else {})


def _encode_constraint(constraint: Constraint, ignored: list[str]) -> Body:
    """Translates the output constraint. Raises InvalidValue for a schema that is not JSON."""
    config: Body = {"responseMimeType": "application/json"}
    if constraint.kind is not ConstraintKind.JSON_SCHEMA:
        return config
    declared = constraint.declared
    try:
        schema = msgspec.json.decode(constraint.source if declared is None else declared.source)
    except msgspec.DecodeError:
        raise InvalidValue(f"{constraint.field} is not JSON", param=constraint.field) from None
    if declared is not None:
        for name, keyword, value in (
            (SCHEMA_NAME, "title", declared.name),
            (SCHEMA_DESCRIPTION, "description", declared.description),
        ):
            if value is not None and (not isinstance(schema, dict) or schema.get(keyword, value) != value):
                ignored.append(name)
            elif value is not None:
                schema = {keyword: value} | schema
    return config | {"responseJsonSchema": schema}


def _encode_reasoning(reasoning: Reasoning, model: VendorModel) -> Body:
    """Returns `thinkingConfig`, which only reasoning models accept. Raises a RequestError for an effort that
    Gemini lacks, or for an effort together with a budget."""
    effort, budget, terms = reasoning.effort, reasoning.budget, reasoning.terms
    config: Body = {}
    if effort is not None and budget is not None:
        raise UnsupportedParameter(
            f"{terms.budget} is not supported by Gemini together with {terms.effort}; send one of them",
            param=terms.budget,
        )
    if effort == NO_EFFORT:
        budget = 0
    elif effort is not None:
        if effort not in LEVELS:
            accepted_values = ", ".join((terms.off, *LEVELS))
            raise UnsupportedParameter(
                f"{terms.effort} {effort[:32]} is not supported by Gemini: send {accepted_values}",
                param=terms.effort,
            )
        config["thinkingLevel"] = LEVELS[effort]
    if budget is not None:
        config["thinkingBudget"] = budget
    if reasoning.shown and budget != 0 and (config or model.profile.reasoning or reasoning.wanted):
        config["includeThoughts"] = True
    return config


def _encode_tools(tools: Tools) -> Body:
    """Returns `tools` and, where the caller chooses among them, `toolConfig`."""
    body: Body = {"tools": [{"functionDeclarations": [_encode_tool(tool) for tool in tools.tools]}]}
    mode = _choose_mode(tools)
    if mode is not None:
        calling_config: Body = {"mode": mode}
        if tools.allowed is not None and tools.choice is not ToolChoice.NONE:
            calling_config["allowedFunctionNames"] = sorted(tools.allowed)
        body["toolConfig"] = {"functionCallingConfig": calling_config}
    return body


def _choose_mode(tools: Tools) -> str | None:
    """Returns the mode of function calling; None for Gemini's default, AUTO. In the modes VALIDATED and ANY,
    calls match their schemas. VALIDATED lets the model choose, like AUTO, but also accepts names of
    functions."""
    if tools.choice is ToolChoice.NONE:
        return "NONE"
    if tools.choice is ToolChoice.REQUIRED:
        return "ANY"
    is_strict = any(tool.strict for tool in tools.tools)
    return "VALIDATED" if is_strict or tools.allowed is not None else None


def _encode_tool(tool: Tool) -> Body:
    """Translates one tool. The schema is the caller's own."""
    declaration: Body = {"name": tool.name}
    if tool.description is not None:
        declaration["description"] = tool.description
    if tool.parameters is not None:
        declaration["parametersJsonSchema"] = tool.parameters
    return declaration


def _encode_tier(tier: str | None) -> str | None:
    """Returns Gemini's name of a service tier; None if no tier is sent. Raises UnsupportedParameter for a
    tier that Gemini lacks."""
    if tier is None or tier == "auto":
        return None
    if tier not in SERVICE_TIERS:
        accepted_values = ", ".join(("auto", *SERVICE_TIERS))
        raise UnsupportedParameter(
            f"service_tier {tier[:32]} is not supported by Gemini: send {accepted_values}",
            param="service_tier",
        )
    return SERVICE_TIERS[tier]
