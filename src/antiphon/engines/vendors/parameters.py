"""Names what a request asks for, so that a vendor that lacks it can refuse it by name."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from msgspec.structs import astuple

from antiphon.domain.messages import MediaContent, MediaKind, Role, ToolChoice
from antiphon.domain.request import (
    ConstraintKind,
    Conversation,
    GenerationRequest,
    HostedOptions,
    Output,
    Prompt,
    RawPrompt,
)
from antiphon.domain.sampling import SamplingOptions
from antiphon.domain.values import changed
from antiphon.domain.vendor_fields import list_hosted, require_transcripts
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.rerank import RERANK, TOKENS_PER_DOCUMENT
from antiphon.errors import UnsupportedParameter

SAMPLING_NAMES = {"mirostat": "mirostat_target"}
"""Names of sampling options in requests, where they differ."""

DEFAULTS: dict[str, object] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": (),
    "min_tokens": 0,
    "ignore_eos": False,
}
"""Values that ask for nothing: dialects write some into every request. They are not sent to a vendor that
lacks the option."""

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
    "logprobs (all)": "send a number of tokens",
    "tool_choice.function": "leave the other tools out of tools, or send auto, required or none",
    "messages (assistant last)": "it continues a last message of the role assistant: end with a message of "
    "another role",
    "include_stop_str_in_output": "its answers end before the text of stop: leave it out, or leave out stop "
    "where answers always contain that text",
}
"""What to do without a parameter, where it can be a rule of the dialect."""

SCHEMA, CHOSEN_TOOLS, LAST_ANSWER = (
    "response_format.json_schema",
    "tool_choice.function",
    "messages (assistant last)",
)
"""In sets of refused parameters only, for one kind of a parameter: a schema, some of several tools by their
names, and an assistant's message at the end that the model shall answer."""

ALL_LOGPROBS = "logprobs (all)"
"""Log-probabilities of the whole vocabulary."""

EXTRAS = frozenset(("extra_params", "extra_headers"))
"""Options that no vendor takes or lacks as such: the operator allows each name in them (`caller_extras`)."""

MAX_COMBINATIONS = 256
"""Sets of parameters that are kept, one for each kind of model and request."""

OTHER_NAMES = frozenset(
    """
    max_tokens n stop stop_token_ids best_of echo suffix logprobs logprob_token_ids prompt_logprobs bad_words
    skip_special_tokens return_token_ids return_tokens_as_token_ids truncate_prompt_tokens
    include_stop_str_in_output stream_options.continuous_usage_stats add_special_tokens
    add_generation_prompt continue_final_message chat_template chat_template_kwargs
    documents reasoning_effort thinking_token_budget tools tool_choice
    parallel_tool_calls guided_whitespace_pattern cache_salt priority
    """.split()
) | {"prompt (token ids)", ALL_LOGPROBS, SCHEMA, CHOSEN_TOOLS, LAST_ANSWER}
"""Names of parameters that are neither sampling options nor options of vendors' services."""


RERANK_NAMES = frozenset((RERANK, TOKENS_PER_DOCUMENT))
"""Names of what a provider takes besides generations: rankings of documents, and their parameter."""


def list_sampling(sampling: SamplingOptions, takes: frozenset[str] = frozenset()) -> list[str]:
    """Returns the sampling options that have an effect. With `takes` also those that only say our default, if
    they are among these: the vendor's own default may differ."""
    found = []
    for name, value in zip(sampling.__struct_fields__, astuple(sampling), strict=True):
        if value is not None and (name in takes or DEFAULTS.get(name, UNSET) != value):
            found.append(SAMPLING_NAMES.get(name, name))
    return found


PART_PARAMETERS = frozenset(("cache_control", "extra_content", "thinking_blocks"))
"""Fields of messages and tools that some providers take. They are named among the parameters that a provider
takes."""

UNSET = object()


PLAIN_OUTPUT = Output()


def list_output(output: Output) -> list[str]:
    """Returns the options of the output that have an effect."""
    found = ["max_tokens"] if output.max_tokens is not None and not output.is_usual else []
    if changed(output, max_tokens=None, is_usual=False) == PLAIN_OUTPUT:  # most requests ask for nothing more
        return found
    asked: dict[str, object] = {
        "n": output.choices > 1,
        "stop": output.stop,
        "stop_token_ids": output.stop_token_ids,
        "best_of": output.best_of is not None,
        "echo": output.echo,
        "suffix": output.suffix,
        "logprobs": output.logprobs is not None,
        ALL_LOGPROBS: output.logprobs == -1,
        "logprob_token_ids": output.logprob_token_ids,
        "prompt_logprobs": output.prompt_logprobs is not None,
        "bad_words": output.bad_words,
        "skip_special_tokens": output.show_special,
        "return_token_ids": output.token_ids,
        "return_tokens_as_token_ids": output.names_by_id,
        "stream_options.continuous_usage_stats": output.running_usage,
        "truncate_prompt_tokens": output.truncate_prompt is not None,
        "include_stop_str_in_output": output.include_stop and (output.stop or output.stop_token_ids),
    }
    found += [name for name, value in asked.items() if value]
    if output.constraint is not None:
        found.append(CONSTRAINT_NAMES[output.constraint.kind])
        if output.constraint.whitespace is not None:
            found.append("guided_whitespace_pattern")
    return found


def list_prompt(prompt: Prompt) -> list[str]:
    """Returns the options of a prompt that have an effect."""
    if isinstance(prompt, RawPrompt):
        found = ["prompt (token ids)"] if prompt.tokens is not None else []
        return found if prompt.add_special else [*found, "add_special_tokens"]
    return list_conversation(prompt)


def list_conversation(prompt: Conversation) -> list[str]:
    """Returns the options of a conversation that have an effect."""
    reasoning, tools = prompt.reasoning, prompt.tools
    asked: dict[str, object] = {
        "add_generation_prompt": not prompt.generation_prompt and not prompt.continues,
        "continue_final_message": prompt.continues,
        "chat_template": prompt.template is not None,
        "chat_template_kwargs": prompt.template_values,
        "documents": prompt.documents is not None,
        "add_special_tokens": prompt.add_special is not None,
        "reasoning_effort": reasoning.effort is not None,
        "thinking_token_budget": reasoning.budget is not None,
        "tools": tools is not None,
        "tool_choice": tools is not None
        and (tools.choice is not ToolChoice.AUTO or tools.allowed is not None),
        "parallel_tool_calls": tools is not None and not tools.parallel,
    }
    return [name for name, value in asked.items() if value]


def list_names() -> frozenset[str]:
    """Returns all names of parameters: the vocabulary of providers' settings and presets."""
    sampling = SamplingOptions.__struct_fields__
    hosted = set(HostedOptions.__struct_fields__) - EXTRAS
    names = {SAMPLING_NAMES.get(name, name) for name in sampling} | hosted
    return frozenset(names | OTHER_NAMES | RERANK_NAMES | set(CONSTRAINT_NAMES.values()))


def list_parameters(request: GenerationRequest) -> list[str]:
    """Returns the name of everything that a request asks for beyond its messages, by OpenAI's names."""
    found = list_sampling(request.sampling) + list_output(request.output)
    for prompt in request.prompts:
        found += list_prompt(prompt)
    found += list_hosted(request.hosted)
    if request.cache_salt:
        found.append("cache_salt")
    if request.priority:
        found.append("priority")
    return found


def shows_reasoning(request: GenerationRequest) -> bool:
    """Whether the caller wants to see the reasoning."""
    return all(each.reasoning.shown for each in request.prompts if isinstance(each, Conversation))


def require_supported(
    request: GenerationRequest,
    taken: frozenset[str],
    model: VendorModel,
    unsendable: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Returns all parameters that the vendor's model takes. Raises UnsupportedParameter for the first thing
    that it does not take. `taken`: the parameters of its wire format. `unsendable`: what is refused even if
    the provider takes it, since this server cannot write it, or cannot read what it brings."""
    refused = (model.refused_parameters, model.profile.refused, unsendable)
    takes, refused_kinds = combine_parameters(taken, model.extra_parameters, refused)
    for name in list_parameters(request):
        if name not in takes:
            raise build_refusal(name, request, model)
    for name in refused_kinds:
        if FINER[name](request):
            raise build_refusal(name, request, model)
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            require_one(request, model)
            require_reasoning(prompt, model)
            require_modalities(prompt, model)
            require_speech(request, prompt, model)
    return takes


@lru_cache(MAX_COMBINATIONS)
def combine_parameters(
    taken: frozenset[str], extra: frozenset[str], refused: tuple[frozenset[str], ...]
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Returns the parameters that are taken or extra and not refused, and the refused kinds of `FINER`."""
    all_refused = frozenset().union(*refused)
    return (taken | extra) - all_refused, tuple(name for name in FINER if name in all_refused)


def build_refusal(name: str, request: GenerationRequest, model: VendorModel) -> UnsupportedParameter:
    """Makes the error for a parameter that the model does not take."""
    shown, remedy = name_field(name, request), REMEDIES.get(name, "leave it out")
    return UnsupportedParameter(
        f"{shown} is not supported by the model {model.name} of the provider {model.provider}; {remedy}",
        param=shown,
    )


def require_one(request: GenerationRequest, model: VendorModel) -> None:
    """Raises UnsupportedParameter for several conversations, since no vendor takes them at once."""
    if len(request.prompts) > 1:
        raise UnsupportedParameter(
            f"messages: the provider {model.provider} takes one conversation at a time; send each in a "
            "request of its own",
            param="messages",
        )


def require_reasoning(prompt: Conversation, model: VendorModel) -> None:
    """Raises UnsupportedParameter if the caller wants to see reasoning of a model that has none."""
    if prompt.reasoning.wanted and model.profile.reasoning is False:
        param = prompt.reasoning.terms.effort
        raise UnsupportedParameter(
            f"{param} is not supported: the model {model.name} of the provider {model.provider} does not "
            "reason; leave it out",
            param=param,
        )


def has_schema(request: GenerationRequest) -> bool:
    """Whether the request has a JSON Schema for its answer."""
    constraint = request.output.constraint
    return constraint is not None and constraint.kind is ConstraintKind.JSON_SCHEMA


def has_chosen_tools(request: GenerationRequest) -> bool:
    """Whether the model may call some of the tools only, chosen by their names."""
    found = [each.tools for each in request.prompts if isinstance(each, Conversation) and each.tools]
    return any(0 < len(tools.callable) < len(tools.tools) for tools in found)


def ends_with_answer(request: GenerationRequest) -> bool:
    """Whether the last message is the assistant's, and the model shall answer it."""
    chats = [each for each in request.prompts if isinstance(each, Conversation) and not each.continues]
    return any(each.messages and each.messages[-1].role is Role.ASSISTANT for each in chats)


FINER: Mapping[str, Callable[[GenerationRequest], bool]] = MappingProxyType(
    {SCHEMA: has_schema, CHOSEN_TOOLS: has_chosen_tools, LAST_ANSWER: ends_with_answer}
)
"""Whether a request has a kind of a parameter that a provider can refuse."""


def name_field(name: str, request: GenerationRequest) -> str:
    """Returns the caller's name of a parameter."""
    constraint = request.output.constraint
    if constraint is not None and name in (CONSTRAINT_NAMES.get(constraint.kind), SCHEMA):
        return constraint.field
    if name == ALL_LOGPROBS:
        return "top_logprobs" if isinstance(request.prompts[0], Conversation) else "logprobs"
    if name in FINER:
        return name.partition(".")[0].partition(" ")[0]
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            terms = prompt.reasoning.terms
            return {"reasoning_effort": terms.effort, "thinking_token_budget": terms.budget}.get(name, name)
    return name


def require_modalities(prompt: Conversation, model: VendorModel) -> None:
    """Raises UnsupportedParameter for an image or a recording that the model does not take."""
    for message in prompt.messages:
        for part in message.content:
            if isinstance(part, MediaContent):
                require_media(part, model)


def require_speech(request: GenerationRequest, prompt: Conversation, model: VendorModel) -> None:
    """Raises UnsupportedParameter for a spoken answer, the next or an earlier one, if the model gives
    none."""
    if model.profile.gives_speech:
        return
    if request.hosted.wants_speech:
        raise UnsupportedParameter(
            f"modalities: the model {model.name} of the provider {model.provider} gives only text; leave it "
            "and audio out",
            param="modalities",
        )
    require_transcripts(prompt)


def require_media(part: MediaContent, model: VendorModel) -> None:
    """Raises UnsupportedParameter if the model does not take this part."""
    if str(part.kind) not in model.profile.modalities:
        kind = "images" if part.kind is MediaKind.IMAGE else "recordings"
        raise UnsupportedParameter(
            f"{part.field}: the model {model.name} of the provider {model.provider} takes no {kind}; leave "
            "them out",
            param=part.field,
        )
    if part.url and not model.passes_addresses:
        raise UnsupportedParameter(
            f"{part.field}: addresses are not passed on to the provider {model.provider}; send a data: URL, "
            "or let the operator set pass_addresses",
            param=part.field,
        )
