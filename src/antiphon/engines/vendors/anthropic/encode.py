"""Translates a request, and the messages of its conversation, for Anthropic's Messages API."""

from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

import msgspec

from antiphon.domain.messages import (
    OWN_SIGNATURE,
    CacheControl,
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
    MessagesBody,
    Output,
    Reasoning,
    SamplingOptions,
)
from antiphon.domain.values import replace
from antiphon.domain.vendor_fields import CONTENT_MARK, EXTRA_HEADERS, THINKING_BLOCKS, TOOL_MARK, list_unused
from antiphon.engines.vendors.anthropic.wire_types import PlacedBlockWire
from antiphon.engines.vendors.base import Attributes, UpstreamCall, VendorModel
from antiphon.engines.vendors.caller_extras import add_extra_fields, read_extra_headers
from antiphon.engines.vendors.parameters import list_sampling_options, require_no_names, require_supported
from antiphon.errors import InvalidValue, MissingParameter, RequestError, UnsupportedParameter
from antiphon.wire.anthropic import OWN_TOOLS, SMALLEST_BUDGET, Effort
from antiphon.wire.placed_blocks import AFTER, BlockPlace, interleave

Body = dict[str, object]

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

SYSTEM_ROLES = frozenset({Role.SYSTEM, Role.DEVELOPER})

ROLES = {
    Role.SYSTEM: "system",
    Role.DEVELOPER: "system",
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
    Role.TOOL: "user",
}
"""The role of the turn to which a message belongs. System messages before all other messages are no turn."""

read_json = msgspec.json.decode

read_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

read_raw_list = msgspec.json.Decoder(list[msgspec.Raw]).decode

ORIGINAL_FIELDS = ("system", "messages", "cache_control", "context_management")
"""The fields that this vendor gets as the caller sent them to the Messages API."""

ORIGINAL_OPTIONS = ("thinking", "output_config", "output_format")
"""The same, if the model reasons."""

NULL = b"null"

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

BETA_HEADER = "anthropic-beta"
"""The header that turns on features before they are final."""

MAX_BUFFERED_OUTPUT = 21_333
"""The most output tokens of an answer that is not streamed. The vendor makes 128,000 tokens in an hour, and
closes a connection that is silent for ten minutes. So a request for a longer answer is streamed, even if the
caller wants the answer whole."""

NO_EFFORT = "none"

EFFORTS = frozenset(get_args(Effort))

SERVICE_TIERS = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
"""The vendor's name of each tier."""

JSON = msgspec.json.Encoder()

TOP_P = "top_p"


def find_original(request: GenerationRequest) -> MessagesBody | None:
    """Returns the body whose conversation the vendor gets unchanged. None if the request did not come by the
    Messages API, or if a step of the pipeline has changed its messages."""
    prompt = request.prompts[0]
    if not isinstance(prompt, Conversation) or prompt.original is None:
        return None
    return prompt.original if prompt.original.messages is prompt.messages else None


def encode_original(
    original: MessagesBody, reasons: bool, passes_hosted_tools: bool, ignored: list[str]
) -> Body:
    """Returns the fields that the vendor gets byte for byte. Leaves out the reasoning of other models, and
    tools that the vendor would run, unless the operator allows them."""
    fields = {name: value for name, value in read_raw_object(original.body).items() if value != NULL}
    names = ORIGINAL_FIELDS + (ORIGINAL_OPTIONS if reasons else ())
    body: Body = {name: fields[name] for name in names if name in fields}
    if original.has_foreign_reasoning:
        messages = read_json(fields["messages"])
        for message in messages:
            if isinstance(message["content"], list):
                message["content"] = [
                    block for block in message["content"] if not is_foreign_reasoning(block)
                ]
        body["messages"] = [message for message in messages if message["content"]]
        ignored.append("messages[].content[].thinking")
    raw_tools = read_raw_list(fields.get("tools", b"[]"))
    if tools := [tool for tool in raw_tools if passes_hosted_tools or not is_hosted(read_json(tool))]:
        body["tools"] = tools
        if "tool_choice" in fields:
            body["tool_choice"] = fields["tool_choice"]
    return body


def is_hosted(tool: Mapping[str, object]) -> bool:
    """Whether the vendor runs a tool."""
    kind = tool.get("type")
    return kind not in (None, "custom") and not str(kind).startswith(OWN_TOOLS)


def is_foreign_reasoning(block: Mapping[str, object]) -> bool:
    """Whether a block is reasoning without a signature of this vendor."""
    signature = block.get("signature")
    return block.get("type") == "thinking" and (
        not isinstance(signature, str) or not signature or signature.startswith(OWN_SIGNATURE)
    )


def encode_messages(prompt: Conversation, ignored: list[str]) -> Body:
    """Translates the messages into `system` and `messages`. Adds the names of parts that this format cannot
    express to `ignored`. Raises a RequestError."""
    require_end(prompt)
    require_no_names(prompt)
    messages = prompt.messages
    instruction_count = next(
        (index for index, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages)
    )
    system: list[Body] = []
    turns: list[tuple[str, list[Body]]] = []
    for index, message in enumerate(messages):
        message_path = f"messages[{index}]"
        blocks = encode_message(message, message_path, ignored)
        if index < instruction_count:
            system += blocks
        elif turns and turns[-1][0] == ROLES[message.role]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((ROLES[message.role], list(blocks)))
    body: Body = {"messages": [{"role": role, "content": content} for role, content in turns]}
    return {"system": system} | body if system else body


def require_end(prompt: Conversation) -> None:
    """Raises a RequestError if the last message has a role after which the vendor does not answer, or which
    it does not continue, as the caller wants."""
    last_role = prompt.messages[-1].role if prompt.messages else Role.SYSTEM
    if last_role is Role.ASSISTANT and not prompt.continues:
        raise UnsupportedParameter(
            "messages: this vendor continues a last message of the role assistant; set "
            "continue_final_message, or end with a message of another role",
            param="messages",
        )
    if last_role is not Role.ASSISTANT and prompt.continues:
        raise InvalidValue(
            "continue_final_message: the last message must have the role assistant",
            param="continue_final_message",
        )
    if all(message.role in SYSTEM_ROLES for message in prompt.messages):
        raise InvalidValue(
            "messages: this vendor needs a message of the role user or assistant", param="messages"
        )


def encode_message(message: Message, message_path: str, ignored: list[str]) -> Iterable[Body]:
    """Returns the blocks of one message."""
    match message.role:
        case Role.ASSISTANT:
            return encode_assistant(message, message_path, ignored)
        case Role.TOOL:
            return (encode_result(message),)
        case Role.USER:
            return encode_content(message)
        case _:
            require_text(message)
            return encode_content(message)


def encode_assistant(message: Message, message_path: str, ignored: list[str]) -> list[Body]:
    """Returns the blocks of an assistant's message: reasoning, text, calls. A block of reasoning keeps its
    position among text and calls, because the vendor requires the original order."""
    require_text(message)
    thoughts = list(read_thoughts(message.thinking_blocks))
    if len(thoughts) < len(message.thinking_blocks):
        ignored.append(THINKING_BLOCKS)
    if message.reasoning and not thoughts:
        ignored.append(f"messages[].{message.reasoning_field}")
    calls = [
        encode_call(call, f"{message_path}.tool_calls[{index}]")
        for index, call in enumerate(message.tool_calls)
    ]
    blocks: list[Body] = [
        {"type": "text", "text": piece} if isinstance(piece, str) else piece
        for piece in interleave(message.text, calls, thoughts)
    ]
    mark_text(blocks, message)
    return blocks


def mark_text(blocks: Iterable[Body], message: Message) -> None:
    """Adds a cache mark to the last text block of a message: the mark of the message's last marked part."""
    marks = [part.cache_control for part in message.content if isinstance(part, TextContent)]
    mark = next((candidate for candidate in reversed(marks) if candidate is not None), None)
    texts = [block for block in blocks if block["type"] == "text"]
    if texts:
        texts[-1].update(encode_cache_mark(mark))


def encode_cache_mark(mark: CacheControl | None) -> Body:
    """Translates the cache mark of a block or a tool. Returns an empty object if there is none."""
    if mark is None:
        return {}
    return {"cache_control": {"type": "ephemeral"} | ({"ttl": mark.lifetime} if mark.lifetime else {})}


def read_thoughts(blocks: Iterable[Mapping[str, object]]) -> Iterator[tuple[BlockPlace, Body]]:
    """Yields each block of reasoning that comes from this vendor, with its position."""
    for block in blocks:
        try:
            position = msgspec.convert(block, PlacedBlockWire).after
        except msgspec.ValidationError:
            continue
        yield position, {name: value for name, value in block.items() if name != AFTER}


def encode_text(text: str) -> Iterator[Body]:
    """Yields the block of a text. Skips an empty text, which this vendor refuses."""
    if text:
        yield {"type": "text", "text": text}


def encode_call(call: ToolCall, message_path: str) -> Body:
    """Translates a call. Raises InvalidValue if its arguments are not a JSON object."""
    field = f"{message_path}.function.arguments"
    arguments = read_object(call.arguments)
    if arguments is None:
        raise InvalidValue(
            f"{field} must be a JSON object, since this vendor takes no other arguments", param=field
        )
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def read_object(text: str) -> msgspec.Raw | None:
    """Returns the text as raw JSON if it is a JSON object, otherwise None. Numbers keep all their digits."""
    try:
        return msgspec.Raw(text.encode()) if isinstance(read_json(text), dict) else None
    except msgspec.DecodeError:
        return None


def encode_result(message: Message) -> Body:
    """Translates the result of a call."""
    block: Body = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    if message.is_error:
        block["is_error"] = True
    content = list(encode_content(message))
    return block | {"content": content} if content else block


def encode_content(message: Message) -> Iterator[Body]:
    """Yields the blocks of a message's content."""
    parts: tuple[Content, ...] = message.content or (TextContent(message.text),)
    for part in parts:
        if isinstance(part, MediaContent) and part.kind is MediaKind.DOCUMENT:
            source = {"type": "base64", "media_type": part.media_type, "data": part.data}
            yield {"type": "document", "source": source}
        elif isinstance(part, MediaContent):
            yield encode_image(part)
        else:
            yield from (block | encode_cache_mark(part.cache_control) for block in encode_text(part.text))


def encode_image(part: MediaContent) -> Body:
    """Translates an image. Raises UnsupportedParameter for a recording, a type or a detail that the vendor
    lacks."""
    if part.kind is not MediaKind.IMAGE:
        raise UnsupportedParameter(f"{part.field}: this vendor takes no recordings", param=part.field)
    if part.detail not in (None, "auto"):
        raise UnsupportedParameter(
            f"{part.field}.detail is not supported by this vendor; leave it out", param=f"{part.field}.detail"
        )
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    if part.media_type not in IMAGE_TYPES:
        raise UnsupportedParameter(
            f"{part.field}: this vendor takes images of the types {', '.join(sorted(IMAGE_TYPES))}",
            param=part.field,
        )
    source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    return {"type": "image", "source": source}


def require_text(message: Message) -> None:
    """Raises UnsupportedParameter for an image or a recording in a message that can contain only text."""
    for part in message.content:
        if isinstance(part, MediaContent):
            raise UnsupportedParameter(
                f"{part.field}: this vendor takes images only from users and tools", param=part.field
            )


def encode_request(request: GenerationRequest, model: VendorModel, attributes: Attributes) -> UpstreamCall:
    """Translates a request. Raises a RequestError that names the field that the vendor lacks."""
    prompt = request.prompts[0]
    if not isinstance(prompt, Conversation):
        raise UnsupportedParameter(
            f"prompt is not supported by the provider {model.provider}, which has only chats; send messages "
            "to /v1/chat/completions",
            param="prompt",
        )
    original, reasons = find_original(request), model.profile.reasoning is not False
    accepting_model = limit_extras(model)
    if original is not None:  # it reads documents itself
        modalities = (*model.profile.modalities, str(MediaKind.DOCUMENT))
        accepting_model = replace(accepting_model, profile=replace(model.profile, modalities=modalities))
    supported = require_supported(request, PARAMETERS, accepting_model, knows_own_tools=original is not None)
    limit = find_token_limit(request.output, model)
    ignored: list[str] = []
    is_streamed = not request.is_buffered or limit > MAX_BUFFERED_OUTPUT
    body: Body = {"model": model.name, "max_tokens": limit}
    if original is not None:
        body |= encode_original(original, reasons, model.passes_hosted_tools, ignored)
    else:
        body |= encode_messages(prompt, ignored)
        if prompt.tools is not None and prompt.tools.tools:
            body |= encode_tools(prompt.tools)
    add_sampling(body, request)
    if original is None or not reasons:
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
    used_fields = USED_FIELDS
    if original is not None:
        hosted = () if model.passes_hosted_tools else original.hosted_tools
        used_fields |= {*original.names} - {*hosted}
        headers += ((BETA_HEADER, original.betas),) if original.betas else ()
    ignored_names = (*list_unused(request, used_fields), *dict.fromkeys(ignored))
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
        return (
            min(output.max_tokens, max_output)
            if output.is_default_max_tokens and max_output
            else output.max_tokens
        )
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
    options = tuple(list_sampling_options(sampling))
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
    effort, budget, names = reasoning.effort, reasoning.budget, reasoning.field_names
    if effort == NO_EFFORT and budget:
        raise InvalidValue(
            f"{names.effort} {names.off} and {names.budget} exclude each other; send one of them",
            param=names.budget,
        )
    if effort not in (None, NO_EFFORT) and effort not in EFFORTS:
        raise build_refusal(reasoning, f"this vendor has {', '.join(sorted(EFFORTS))} and none")
    if effort == NO_EFFORT or budget == 0:
        return None if model.profile.reasoning is False else {"type": "disabled"}
    if effort is None and budget is None and not reasoning.is_required:
        return None
    if model.profile.reasoning is False:
        raise build_refusal(reasoning, f"the model {model.name} does not reason; leave it out")
    display = "summarized" if reasoning.shown else "omitted"
    if budget is None:
        return {"type": "adaptive", "display": display}
    if budget < SMALLEST_BUDGET:
        raise InvalidValue(
            f"{names.budget} must be 0 or at least {SMALLEST_BUDGET} at this vendor", param=names.budget
        )
    return {"type": "enabled", "budget_tokens": budget, "display": display}


def build_refusal(reasoning: Reasoning, reason: str) -> RequestError:
    """Builds the error for a reasoning option that the model lacks."""
    names, has_effort = reasoning.field_names, reasoning.effort is not None or reasoning.is_required
    field = names.effort if has_effort else names.budget
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
