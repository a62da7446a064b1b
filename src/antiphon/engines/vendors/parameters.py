"""Lists the parameters that a request uses, and refuses by name those that a vendor's model lacks."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType

from msgspec.structs import astuple

from antiphon.domain.messages import MediaContent, Role, ToolChoice
from antiphon.domain.request import (
    NO_SAMPLING,
    NO_VENDOR_OPTIONS,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Output,
    Prompt,
    RawPrompt,
    Sampling,
    SamplingOptions,
    VendorOptions,
)
from antiphon.domain.vendor_fields import (
    PREDICTED_IDS,
    build_modality_refusal,
    list_vendor_options,
    require_known_tools,
    require_transcripts,
)
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.rerank import RERANK, TOKENS_PER_DOCUMENT
from antiphon.errors import UnsupportedParameter

SAMPLING_NAMES = {"mirostat": "mirostat_target"}
"""Names of sampling options in requests, where they differ."""

DEFAULTS: dict[str, object] = {
    name: getattr(Sampling(), name) for name in Sampling.__struct_fields__ if name != "seed"
}
"""Values without an effect. Dialects write some of them into every request. They are not sent to a vendor
that lacks the option."""

CONSTRAINT_NAMES = {
    ConstraintKind.JSON_OBJECT: "response_format",
    ConstraintKind.JSON_SCHEMA: "response_format",
    ConstraintKind.REGEX: "guided_regex",
    ConstraintKind.CHOICE: "guided_choice",
    ConstraintKind.LARK: "guided_grammar",
    ConstraintKind.GBNF: "guided_grammar",
}
"""The parameter of each kind of constraint."""

REMEDIES = {
    "logprobs (all)": "send a number instead of -1",
    "tool_choice.function": "leave the other tools out of tools, or send auto, required or none",
    "messages (assistant last)": (
        "it continues a last message of the role assistant: end with a message of another role"
    ),
    "include_stop_str_in_output": (
        "its answers end before the text of stop: leave it out, or leave out stop where answers always "
        "contain that text"
    ),
}
"""What to do without a parameter, if leaving it out does not suffice."""

SCHEMA, CHOSEN_TOOLS, LAST_ANSWER = (
    "response_format.json_schema",
    "tool_choice.function",
    "messages (assistant last)",
)
"""Names for special cases of parameters, which occur only in sets of refused parameters: a JSON Schema, a
choice of some of the tools, and an assistant's message as the last message."""

ALL_LOGPROBS = "logprobs (all)"
"""Log-probabilities of the whole vocabulary."""

EXTRAS = frozenset(("extra_params", "extra_headers"))
"""Options that contain fields and headers of a vendor's own. The operator allows each name in them (see
`add_extra_fields`), so no vendor lacks the options themselves."""

MAX_COMBINATIONS = 256
"""The most cached sets of parameters, one for each kind of model and request."""

CONDITIONAL_NAMES = (
    "max_tokens",
    "include_stop_str_in_output",
    "tool_choice",
    "parallel_tool_calls",
    "guided_whitespace_pattern",
    "cache_salt",
    "priority",
    "prompt (token ids)",
    ALL_LOGPROBS,
)
"""Names of parameters that have an effect only together with others, or in one kind of prompt."""

RERANK_NAMES = frozenset((RERANK, TOKENS_PER_DOCUMENT))
"""Names for rankings of documents and their parameter, among the parameters that a provider takes."""

REASONING_SUMMARY = "reasoning.summary"
"""The summary that OpenAI's Responses API writes of the reasoning, not for every organization."""

PART_PARAMETERS = frozenset(("cache_control", "extra_content", "thinking_blocks", REASONING_SUMMARY))
"""Fields of messages, tools and answers that some providers take. Settings list them among the parameters
that a provider takes or refuses."""

UNSET = object()

get_output_options = attrgetter(
    *[name for name in Output.__struct_fields__ if name not in ("max_tokens", "is_default_max_tokens")]
)
"""Returns the values of all fields of the output but the limit of tokens."""

NO_OUTPUT_OPTIONS = get_output_options(Output())

OUTPUT_PARAMETERS = {
    "n": "choices",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "best_of": "best_of",
    "echo": "echo",
    "suffix": "suffix",
    "logprobs": "logprobs",
    "logprob_token_ids": "logprob_token_ids",
    "prompt_logprobs": "prompt_logprobs",
    "bad_words": "bad_words",
    "skip_special_tokens": "show_special",
    "return_token_ids": "token_ids",
    "return_tokens_as_token_ids": "names_by_id",
    "stream_options.continuous_usage_stats": "running_usage",
    "truncate_prompt_tokens": "truncate_prompt",
}
"""The fields of `Output`, by the parameters that set them."""

get_listed_options = attrgetter(*OUTPUT_PARAMETERS.values())

NO_LISTED_OPTIONS = get_listed_options(Output())

CONVERSATION_PARAMETERS = {
    "add_generation_prompt": "generation_prompt",
    "continue_final_message": "continues",
    "chat_template": "template",
    "chat_template_kwargs": "template_values",
    "documents": "documents",
    "add_special_tokens": "add_special",
    "reasoning_effort": "reasoning.effort",
    "thinking_token_budget": "reasoning.budget",
    "tools": "tools",
}
"""The fields of `Conversation`, by the parameters that set them."""

get_conversation_options = attrgetter(*CONVERSATION_PARAMETERS.values())

NO_CONVERSATION_OPTIONS = get_conversation_options(Conversation(()))


def list_sampling_options(sampling: SamplingOptions, supported: frozenset[str] = frozenset()) -> list[str]:
    """Returns the names of the sampling options that have an effect. Includes an option in `supported`, which
    the vendor's model takes, even if its value has no effect here: the vendor's default may be another
    value."""
    if sampling == NO_SAMPLING:
        return []
    return [
        SAMPLING_NAMES.get(name, name)
        for name, value in zip(sampling.__struct_fields__, astuple(sampling), strict=True)
        if value is not None and (name in supported or DEFAULTS.get(name, UNSET) != value)
    ]


def list_output_parameters(output: Output) -> list[str]:
    """Returns the names of the output parameters that have an effect."""
    names = ["max_tokens"] if output.max_tokens is not None and not output.is_default_max_tokens else []
    if get_output_options(output) == NO_OUTPUT_OPTIONS:
        return names  # most requests ask for nothing more
    for name, value, unused in zip(
        OUTPUT_PARAMETERS, get_listed_options(output), NO_LISTED_OPTIONS, strict=True
    ):
        if value != unused:
            names.append(name)
    if output.logprobs == -1:
        names.append(ALL_LOGPROBS)
    if output.include_stop and (output.stop or output.stop_token_ids):
        names.append("include_stop_str_in_output")
    if output.constraint is not None:
        names.append(CONSTRAINT_NAMES[output.constraint.kind])
        if output.constraint.whitespace is not None:
            names.append("guided_whitespace_pattern")
    return names


def list_prompt_parameters(prompt: Prompt) -> list[str]:
    """Returns the names of a prompt's parameters that have an effect."""
    if isinstance(prompt, RawPrompt):
        names = ["prompt (token ids)"] if prompt.tokens is not None else []
        return names if prompt.add_special else [*names, "add_special_tokens"]
    return list_conversation_parameters(prompt)


def list_conversation_parameters(prompt: Conversation) -> list[str]:
    """Returns the names of a conversation's parameters that have an effect."""
    names = [
        name
        for name, value, unused in zip(
            CONVERSATION_PARAMETERS, get_conversation_options(prompt), NO_CONVERSATION_OPTIONS, strict=True
        )
        if value != unused
    ]
    if prompt.continues and not prompt.generation_prompt:
        names.remove("add_generation_prompt")
    if (tools := prompt.tools) is not None:
        if tools.choice is not ToolChoice.AUTO or tools.allowed is not None:
            names.append("tool_choice")
        if not tools.parallel:
            names.append("parallel_tool_calls")
    return names


def list_names() -> frozenset[str]:
    """Returns all names of parameters that settings and presets of providers can contain."""
    sampling = SamplingOptions.__struct_fields__
    vendor_options = set(VendorOptions.__struct_fields__) - EXTRAS
    names = {SAMPLING_NAMES.get(name, name) for name in sampling} | vendor_options
    return frozenset(names).union(
        OUTPUT_PARAMETERS,
        CONVERSATION_PARAMETERS,
        CONSTRAINT_NAMES.values(),
        SPECIAL_CASES,
        RERANK_NAMES,
        CONDITIONAL_NAMES,
    )


def list_parameters(request: GenerationRequest) -> list[str]:
    """Returns OpenAI's names of all parameters that have an effect in a request."""
    names = list_sampling_options(request.sampling) + list_output_parameters(request.output)
    for prompt in request.prompts:
        if isinstance(prompt, RawPrompt) or get_conversation_options(prompt) != NO_CONVERSATION_OPTIONS:
            names += list_prompt_parameters(prompt)
    if request.vendor_options is not NO_VENDOR_OPTIONS:
        names += list_vendor_options(request.vendor_options)
    if request.cache_salt:
        names.append("cache_salt")
    if request.priority:
        names.append("priority")
    return names


def shows_reasoning(request: GenerationRequest) -> bool:
    """Whether the caller wants to see the reasoning."""
    return all(prompt.reasoning.shown for prompt in request.prompts if isinstance(prompt, Conversation))


def require_supported(
    request: GenerationRequest,
    format_parameters: frozenset[str],
    model: VendorModel,
    unusable: frozenset[str] = frozenset(),
    knows_own_tools: bool = False,
) -> frozenset[str]:
    """Returns all parameters that the vendor's model takes. Raises UnsupportedParameter for the first
    parameter of the request that the model does not take. `format_parameters`: the parameters of the wire
    format. `unusable`: parameters that this server cannot write, or whose results it cannot read.
    `knows_own_tools`: whether the vendor is Anthropic, and gets the body of the Messages API unchanged."""
    if not knows_own_tools:
        require_known_tools(request)
    refused = (model.refused_parameters, model.profile.refused, unusable)
    supported, refused_cases = combine_parameters(format_parameters, model.extra_parameters, refused)
    for name in list_parameters(request):
        if name not in supported:
            raise build_refusal(name, request, model)
    for name in refused_cases:
        if SPECIAL_CASES[name](request):
            raise build_refusal(name, request, model)
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            require_conversation(prompt, request, model)
    return supported


@lru_cache(MAX_COMBINATIONS)
def combine_parameters(
    format_parameters: frozenset[str], extra: frozenset[str], refused: tuple[frozenset[str], ...]
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Returns the parameters of the format and the extra ones, without the refused ones. Also returns the
    refused special cases."""
    all_refused = frozenset().union(*refused)
    return (format_parameters | extra) - all_refused, tuple(
        name for name in SPECIAL_CASES if name in all_refused
    )


def build_refusal(name: str, request: GenerationRequest, model: VendorModel) -> UnsupportedParameter:
    """Builds the error for a parameter that the model does not take."""
    field, remedy = name_field(name, request), REMEDIES.get(name, "leave it out")
    return UnsupportedParameter(
        f"{field} is not supported by the model {model.name} of the provider {model.provider}; {remedy}",
        param=field,
    )


def require_conversation(prompt: Conversation, request: GenerationRequest, model: VendorModel) -> None:
    """Raises UnsupportedParameter if the request has several conversations, or if the conversation needs
    reasoning, media or speech that the model lacks."""
    if len(request.prompts) > 1:
        raise UnsupportedParameter(
            f"messages: the provider {model.provider} takes one conversation at a time; send each in a "
            "request of its own",
            param="messages",
        )
    if prompt.reasoning.is_required and model.profile.reasoning is False:
        param = prompt.reasoning.field_names.effort
        raise UnsupportedParameter(
            f"{param} is not supported: the model {model.name} of the provider {model.provider} does not "
            "reason; leave it out",
            param=param,
        )
    for message in prompt.messages:
        for part in message.content:
            if isinstance(part, MediaContent):
                require_media(part, model)
    if model.profile.gives_speech:
        return
    if request.vendor_options is not NO_VENDOR_OPTIONS and request.vendor_options.wants_speech:
        raise UnsupportedParameter(
            f"modalities: the model {model.name} of the provider {model.provider} gives only text; leave it "
            "and audio out",
            param="modalities",
        )
    require_transcripts(prompt)


def require_no_names(prompt: Conversation) -> None:
    """Raises UnsupportedParameter if a message has a name, unless it is the name of the called tool in the
    result of a call."""
    called_names = {call.id: call.name for message in prompt.messages for call in message.tool_calls}
    for index, message in enumerate(prompt.messages):
        if message.name not in (None, called_names.get(message.tool_call_id or "")):
            raise UnsupportedParameter(
                f"messages[{index}].name is not supported: this vendor's messages have no names; leave it "
                "out",
                param=f"messages[{index}].name",
            )


def has_schema(request: GenerationRequest) -> bool:
    """Whether the request has a JSON Schema for its answer."""
    constraint = request.output.constraint
    return constraint is not None and constraint.kind is ConstraintKind.JSON_SCHEMA


def has_chosen_tools(request: GenerationRequest) -> bool:
    """Whether the caller allows only some of the tools."""
    tool_sets = [
        prompt.tools for prompt in request.prompts if isinstance(prompt, Conversation) and prompt.tools
    ]
    return any(0 < len(tools.callable) < len(tools.tools) for tools in tool_sets)


def ends_with_answer(request: GenerationRequest) -> bool:
    """Whether the last message is the assistant's, and the model must answer it instead of continuing it."""
    conversations = [
        prompt for prompt in request.prompts if isinstance(prompt, Conversation) and not prompt.continues
    ]
    return any(prompt.messages and prompt.messages[-1].role is Role.ASSISTANT for prompt in conversations)


SPECIAL_CASES: Mapping[str, Callable[[GenerationRequest], bool]] = MappingProxyType(
    {SCHEMA: has_schema, CHOSEN_TOOLS: has_chosen_tools, LAST_ANSWER: ends_with_answer}
)
"""For each special case, the function that tells whether a request has it."""


def name_field(name: str, request: GenerationRequest) -> str:
    """Returns the caller's name of a parameter."""
    constraint = request.output.constraint
    if constraint is not None and name in (CONSTRAINT_NAMES.get(constraint.kind), SCHEMA):
        return constraint.field
    if name == ALL_LOGPROBS:
        return "top_logprobs" if isinstance(request.prompts[0], Conversation) else "logprobs"
    if name in SPECIAL_CASES:
        return name.partition(".")[0].partition(" ")[0]
    prediction = request.vendor_options.prediction
    if prediction is not None and name in ("prediction", PREDICTED_IDS):
        return prediction.field
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            names = prompt.reasoning.field_names
            return {"reasoning_effort": names.effort, "thinking_token_budget": names.budget}.get(name, name)
    return name


def require_media(part: MediaContent, model: VendorModel) -> None:
    """Raises UnsupportedParameter if the model does not take this part."""
    if str(part.kind) not in model.profile.modalities:
        raise build_modality_refusal(part, f"the model {model.name} of the provider {model.provider}")
    if part.url and not model.passes_addresses:
        raise UnsupportedParameter(
            f"{part.field}: addresses are not passed on to the provider {model.provider}; send a data: URL, "
            "or let the operator set pass_addresses",
            param=part.field,
        )
