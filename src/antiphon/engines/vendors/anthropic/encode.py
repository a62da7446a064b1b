"""Translates a request for Anthropic's Messages API."""

import msgspec

from antiphon.domain.messages import Tool, ToolChoice, Tools
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Output,
    Reasoning,
)
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import replace
from antiphon.domain.vendor_fields import CONTENT_MARK, EXTRA_HEADERS, THINKING_BLOCKS, TOOL_MARK, list_unused
from antiphon.engines.vendors.anthropic.messages import Body, encode_cache_mark, encode_messages, read_object
from antiphon.engines.vendors.base import Attributes, UpstreamCall, VendorModel
from antiphon.engines.vendors.caller_extras import add_extra_fields, read_extra_headers
from antiphon.engines.vendors.parameters import list_sampling, require_supported
from antiphon.errors import InvalidValue, MissingParameter, RequestError, UnsupportedParameter

PARAMETERS = frozenset(
    """
    max_tokens temperature top_p top_k stop response_format reasoning_effort thinking_token_budget tools
    tool_choice parallel_tool_calls continue_final_message service_tier
    """.split()
)
"""The parameters of the Messages API, by OpenAI's names."""

USED_FIELDS = frozenset({THINKING_BLOCKS, EXTRA_HEADERS, TOOL_MARK, CONTENT_MARK})
"""Fields that local engines ignore, but that this vendor uses."""

EXTRA_PARAMETERS = frozenset(SamplingOptions.__struct_fields__) - {"logit_bias", "mirostat"}
"""Parameters that other servers with this format can take in addition. They are sent under the same names."""

MAX_BUFFERED_OUTPUT = 21_333
"""The most output tokens of an answer that is not streamed. The vendor makes 128,000 tokens in an hour, and
closes a connection that is silent for ten minutes. So a request for a longer answer is streamed, even if the
caller wants the answer whole."""

NO_EFFORT = "none"
EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})

MIN_BUDGET = 1024
"""The smallest budget of reasoning that the vendor takes."""

SERVICE_TIERS = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
"""The vendor's name of each tier."""

JSON = msgspec.json.Encoder()

TOP_P = "top_p"


def encode_request(request: GenerationRequest, model: VendorModel, attributes: Attributes) -> UpstreamCall:
    """Translates a request. Raises a RequestError that names the field that the vendor lacks."""
    prompt = request.prompts[0]
    if not isinstance(prompt, Conversation):
        raise UnsupportedParameter(
            f"prompt is not supported by the provider {model.provider}, which has only chats; send messages "
            "to /v1/chat/completions",
            param="prompt",
        )
    supported = require_supported(request, PARAMETERS, limit_extras(model))
    limit = find_token_limit(request.output, model)
    ignored: list[str] = []
    is_streamed = not request.is_buffered or limit > MAX_BUFFERED_OUTPUT
    body: Body = {"model": model.name, "max_tokens": limit} | encode_messages(prompt, ignored)
    add_sampling(body, request)
    if prompt.tools is not None and prompt.tools.tools:
        body |= encode_tools(prompt.tools)
    add_output_config(body, request.output.constraint, prompt.reasoning, model)
    if attributes.end_user is not None:
        body["metadata"] = {"user_id": attributes.end_user}
    tier = request.vendor_options.service_tier
    if tier is not None and "service_tier" in supported:
        body["service_tier"] = encode_tier(tier)
    if is_streamed:
        body["stream"] = True
    body |= dict(model.body)
    add_extra_fields(body, request, model)
    headers = read_extra_headers(request, model)
    ignored_names = (*list_unused(request, USED_FIELDS), *dict.fromkeys(ignored))
    return UpstreamCall("/messages", JSON.encode(body), is_streamed, headers, ignored_names)


def limit_extras(model: VendorModel) -> VendorModel:
    """Returns the model without extra parameters that this format cannot carry."""
    if model.extra_parameters <= EXTRA_PARAMETERS:
        return model
    return replace(model, extra_parameters=model.extra_parameters & EXTRA_PARAMETERS)


def find_token_limit(output: Output, model: VendorModel) -> int:
    """Returns the maximum of output tokens, which the vendor requires. Raises MissingParameter if neither the
    request nor the model's profile tells a maximum."""
    max_output = model.profile.max_output
    if output.max_tokens is not None:
        return min(output.max_tokens, max_output) if output.is_usual and max_output else output.max_tokens
    if max_output is None:
        raise MissingParameter(
            f"max_tokens is missing: the model {model.name} of the provider {model.provider} needs it",
            param="max_tokens",
        )
    return max_output


def add_sampling(body: Body, request: GenerationRequest) -> None:
    """Adds the stop texts, and the sampling options that have an effect; the vendor has the same defaults.
    Raises UnsupportedParameter for an optional top_p together with a temperature, because some of the
    vendor's models refuse both together. Raises InvalidValue for a temperature above 1."""
    sampling = request.sampling
    if sampling.temperature is not None and sampling.temperature > 1:
        raise InvalidValue("temperature must be at most 1 at this vendor", param="temperature")
    options = tuple(list_sampling(sampling))
    if TOP_P in request.optional and {TOP_P, "temperature"} <= {*options}:
        raise UnsupportedParameter("top_p is not taken beside temperature; send one of them", param=TOP_P)
    for name in options:
        body[name] = getattr(sampling, name)
    if request.output.stop:
        body["stop_sequences"] = list(request.output.stop)


def encode_tier(tier: str) -> str:
    """Returns the vendor's name of a service tier. Raises UnsupportedParameter if the vendor lacks the
    tier."""
    if tier not in SERVICE_TIERS:
        raise UnsupportedParameter(
            f"service_tier {tier[:32]} is not supported by this vendor; it has {', '.join(SERVICE_TIERS)}",
            param="service_tier",
        )
    return SERVICE_TIERS[tier]


# --- tools --------------------------------------------------------------------------------------------------


def encode_tools(tools: Tools) -> Body:
    """Translates the tools and the choice among them."""
    choice = encode_choice(tools)
    if not tools.parallel and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    body: Body = {"tools": [encode_tool(tool) for tool in tools.tools]}
    return body if choice == {"type": "auto"} else body | {"tool_choice": choice}


def encode_tool(tool: Tool) -> Body:
    """Translates one tool. The vendor gets the caller's own schema, with the type object, which it
    requires."""
    encoded: Body = {"name": tool.name}
    if tool.description is not None:
        encoded["description"] = tool.description
    encoded["input_schema"] = {"type": "object"} | dict(tool.parameters or {"properties": {}})
    if tool.strict:
        encoded["strict"] = True
    return encoded | encode_cache_mark(tool.cache_control)


def encode_choice(tools: Tools) -> Body:
    """Translates the choice among the tools. Raises UnsupportedParameter if the model can call only some of
    the tools, unless it must call the only allowed one."""
    if tools.choice is ToolChoice.NONE:
        return {"type": "none"}
    kind = "any" if tools.choice is ToolChoice.REQUIRED else "auto"
    names = [tool.name for tool in tools.callable]
    if len(names) == len(tools.tools):
        is_named = kind == "any" and tools.allowed is not None and len(names) == 1
        return {"type": "tool", "name": names[0]} if is_named else {"type": kind}
    if kind == "any" and len(names) == 1:
        return {"type": "tool", "name": names[0]}
    raise UnsupportedParameter(
        "tool_choice: this vendor lets the model call all tools, one tool that it must call, or none; leave "
        "the other tools out of tools",
        param="tool_choice",
    )


# --- reasoning and the output constraint --------------------------------------------------------------------


def add_output_config(
    body: Body, constraint: Constraint | None, reasoning: Reasoning, model: VendorModel
) -> None:
    """Adds the reasoning and the output constraint."""
    config: Body = {}
    thinking = encode_thinking(reasoning, model)
    if thinking is not None:
        body["thinking"] = thinking
    if thinking is not None and reasoning.effort in EFFORTS:
        config["effort"] = reasoning.effort
    if constraint is not None:
        config["format"] = encode_format(constraint)
    if config:
        body["output_config"] = config


def encode_thinking(reasoning: Reasoning, model: VendorModel) -> Body | None:
    """Translates the reasoning options. Returns None if the vendor's default applies. Raises a RequestError
    for an option that the model lacks."""
    effort, budget, terms = reasoning.effort, reasoning.budget, reasoning.terms
    if effort == NO_EFFORT and budget:
        raise InvalidValue(
            f"{terms.effort} {terms.off} and {terms.budget} exclude each other; send one of them",
            param=terms.budget,
        )
    if effort not in (None, NO_EFFORT) and effort not in EFFORTS:
        raise build_refusal(reasoning, f"this vendor has {', '.join(sorted(EFFORTS))} and none")
    if effort == NO_EFFORT or budget == 0:
        return None if model.profile.reasoning is False else {"type": "disabled"}
    if effort is None and budget is None and not reasoning.wanted:
        return None
    if model.profile.reasoning is False:
        raise build_refusal(reasoning, f"the model {model.name} does not reason; leave it out")
    display = "summarized" if reasoning.shown else "omitted"
    if budget is None:
        return {"type": "adaptive", "display": display}
    if budget < MIN_BUDGET:
        raise InvalidValue(
            f"{terms.budget} must be 0 or at least {MIN_BUDGET} at this vendor", param=terms.budget
        )
    return {"type": "enabled", "budget_tokens": budget, "display": display}


def build_refusal(reasoning: Reasoning, reason: str) -> RequestError:
    """Builds the error for a reasoning option that the model lacks."""
    terms, has_effort = reasoning.terms, reasoning.effort is not None or reasoning.wanted
    field = terms.effort if has_effort else terms.budget
    value = f"{field} {reasoning.effort[:32]}" if reasoning.effort is not None else field
    return UnsupportedParameter(f"{value} is not supported: {reason}", param=field)


def encode_format(constraint: Constraint) -> Body:
    """Translates the output constraint. Raises a RequestError if it is not a JSON Schema."""
    field = constraint.field
    if constraint.kind is not ConstraintKind.JSON_SCHEMA:
        raise UnsupportedParameter(
            f"{field} is not supported by this vendor without a schema; send a JSON Schema", param=field
        )
    source = constraint.source if constraint.declared is None else constraint.declared.source
    schema = read_object(source)
    if schema is None:
        raise InvalidValue(f"{field} must be a JSON Schema that is an object", param=field)
    return {"type": "json_schema", "schema": schema}
