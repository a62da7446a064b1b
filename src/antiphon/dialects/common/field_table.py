"""Tables of the known fields of a dialect. A field is supported, ignored for a reason, or refused.

A refused field is accepted with a value that means the default behaviour (`accepted_values`). A field in no
table is unknown and refused. Null always means absent. Each dialect has one table. Decoding uses it, and the
docs and the OpenAPI document contain it.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from antiphon.dialects.common.strict_json import MAX_SHOWN_KEY, sanitize_key
from antiphon.errors import AntiphonError, UnknownParameter, UnsupportedParameter

INDEX = re.compile(r"\[\d+\]")


class Need(StrEnum):
    """The part of an engine or a model that a supported field needs. If the model lacks it, the server
    refuses the field by name."""

    NOTHING = "every engine"
    TOKENS = "a token engine"
    CONSTRAINTS = "an engine with constraints"
    TEMPLATE = "a chat template"
    REASONING = "a model that reasons"
    ADAPTERS = "an engine that takes adapters"
    EMBEDDING = "an embedding model"
    VISION = "a model that takes images"
    HEARING = "a model that takes recordings"
    SPEECH = "a model that speaks"
    PREDICTIONS = "a model that takes predictions"
    VENDOR = "a vendor's model"

    @property
    def explanation(self) -> str:
        """The need as a sentence for the docs."""
        return _EXPLANATIONS[self]


_EXPLANATIONS: Mapping[Need, str] = {
    Need.NOTHING: "every model.",
    Need.TOKENS: "a local model. A vendor's model takes the fields that its vendor supports.",
    Need.CONSTRAINTS: "a local model. A vendor's model takes the fields that its vendor enforces.",
    Need.TEMPLATE: "the model's own, or the request's if `chat_template` is allowed.",
    Need.REASONING: "a model whose chat template marks its reasoning.",
    Need.ADAPTERS: "a local model.",
    Need.EMBEDDING: "a model that makes vectors and no text.",
    Need.VISION: "a vendor's model with `image` in the modalities of its profile. "
    "Local models take only text.",
    Need.HEARING: "a vendor's model with `audio` in the modalities of its profile.",
    Need.SPEECH: "a vendor's model with `audio` in the output modalities of its profile.",
    Need.PREDICTIONS: "a local model on llama.cpp without `exact`, or a model of a provider that "
    "supports the field.",
    Need.VENDOR: "a model of a provider that supports the field. The row says whether local models refuse "
    "or ignore it.",
}

_NAMES: Mapping[Need, str] = {
    Need.TOKENS: "top_k min_p typical_p repetition_penalty logit_bias mirostat_target mirostat_lr min_tokens "
    "ignore_eos allowed_token_ids stop_token_ids cache_salt echo suffix best_of logprobs top_logprobs "
    "prompt_logprobs skip_special_tokens spaces_between_special_tokens add_special_tokens "
    "include_stop_str_in_output bad_words "
    "truncate_prompt_tokens truncation_side logprob_token_ids "
    "return_token_ids return_tokens_as_token_ids return_token_strs tokens priority "
    "prompt_cache_isolation_key context_length_exceeded_behavior echo_last",
    Need.CONSTRAINTS: "response_format guided_json guided_regex guided_choice guided_grammar "
    "guided_whitespace_pattern guided_decoding_backend structured_outputs tool_choice "
    "parallel_tool_calls strict",
    Need.TEMPLATE: "messages tools add_generation_prompt continue_final_message chat_template "
    "chat_template_kwargs documents",
    Need.REASONING: "reasoning_effort include_reasoning include_thinking thinking_token_budget thinking "
    "reasoning_history thinking_budget",
    Need.ADAPTERS: "lora_name lora_path load_inplace base_model_name model_name model_source hf_revision "
    "hf_token",
    Need.EMBEDDING: "input encoding_format dimensions",
    Need.VISION: "images image_url detail",
    Need.HEARING: "input_audio data format",
    Need.SPEECH: "modalities audio",
    Need.PREDICTIONS: "prediction speculation",
    Need.VENDOR: "cache_control verbosity service_tier prompt_cache_key thinking_blocks extra_content",
}

NEEDS: Mapping[str, Need] = {name: need for need, names in _NAMES.items() for name in names.split()}
"""The need of each field. Other fields need nothing."""

END_USER = "The end user, for the records of usage. Ignored without keys."
TAGS = "Up to 16 pairs of texts, of 64 and 512 characters, for the records of usage. Ignored without keys."
"""The meaning of two fields that are the same in every dialect."""

SERVICE_TIER = (
    "The vendor's class of service: flex, priority. A local model refuses values other than auto and default."
)
CACHE_KEY = (
    "A hint for a vendor's cache: requests with the same key have prompts with the same "
    "beginning. Local models ignore it, because they find cached prefixes themselves."
)

MEMORY = (
    "Which part of the conversation the model sees: an object of `name` and its parameters. "
    "The strategies are last_k, last_tokens, summary and relevant (memory.md). The header "
    "x-antiphon-memory counts what was left out."
)
NO_MEMORY = "a text completion has no messages to choose from; send messages to chat/completions"

RETRIEVAL = (
    "The knowledge table to answer from: `table_id`, `k` (3) and other fields (retrieval.md)."
    " The answer's `references` show what the model saw."
)
NO_RETRIEVAL = "a text completion has no question; send messages to chat/completions"

SUFFIX = (
    "The text after the completion: a model with `infill` in its profile fills the middle. "
    "Local models refuse it together with token ids, echo and truncate_prompt_tokens. An "
    "empty text counts as none."
)

MOST_NAMES = 32
"""The most fields in `x-antiphon-ignored`. With names of 64 characters the header has 2 KB."""


class FieldSupport(StrEnum):
    """How the server treats a field."""

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, slots=True)
class RequestField:
    """A field in one or several objects of a request."""

    name: str
    scopes: frozenset[str]
    """The objects that contain the field."""
    support: FieldSupport
    description: str
    """What the field does, why it is ignored, or what to use instead."""
    accepted_values: tuple[object, ...] = ()
    """Accepted values of a refused field. They mean the default behaviour."""
    opaque: bool = False
    """Whether the field is removed before decoding, whatever its value is."""

    @property
    def needs(self) -> Need:
        """The part of an engine or a model that the field needs."""
        return NEEDS.get(self.name, Need.NOTHING)


def declare_supported(scopes: Iterable[str], **description: str) -> tuple[RequestField, ...]:
    """Declares fields that have an effect, each with its description."""
    return tuple(
        RequestField(name, frozenset(scopes), FieldSupport.SUPPORTED, text)
        for name, text in description.items()
    )


def declare_ignored(name: str, scopes: Iterable[str], description: str) -> RequestField:
    """Declares a field that is accepted and has no effect."""
    return RequestField(name, frozenset(scopes), FieldSupport.IGNORED, description)


def declare_echoed(scopes: Iterable[str], description: str, *names: str) -> tuple[RequestField, ...]:
    """Declares fields that repeat part of an earlier answer. They are ignored with any value."""
    known_scopes = frozenset(scopes)
    return tuple(
        RequestField(name, known_scopes, FieldSupport.IGNORED, description, opaque=True) for name in names
    )


def declare_refused(
    name: str, scopes: Iterable[str], description: str, *accepted_values: object
) -> RequestField:
    """Declares a field that is refused."""
    return RequestField(name, frozenset(scopes), FieldSupport.REFUSED, description, accepted_values)


Table = Mapping[str, RequestField]


@dataclasses.dataclass(slots=True)
class FieldReport:
    """The ignored fields of one body, from all of its objects."""

    takes_unknown: bool = False
    """Whether an unknown field is reported instead of refused."""
    paths: list[str] = dataclasses.field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields without duplicates, as many as fit a header."""
        if not self.paths:
            return ()
        names = list(dict.fromkeys(INDEX.sub("[]", path) for path in self.paths))
        omission_note = (f"and {len(names) - MOST_NAMES} more",) if len(names) > MOST_NAMES else ()
        return (*names[:MOST_NAMES], *omission_note)


class FieldTable:
    """The field tables of one dialect, by object."""

    def __init__(
        self, fields: Iterable[RequestField], scopes: Iterable[str], endpoints: tuple[str, ...]
    ) -> None:
        """`endpoints`: the scopes that are endpoints. The error for a field that another endpoint has names
        this endpoint."""
        all_fields = tuple(fields)
        self.tables: Mapping[str, Table] = {
            scope: {field.name: field for field in all_fields if scope in field.scopes} for scope in scopes
        }
        self._endpoints = endpoints

    def filter(
        self, fields: dict[str, Any], scope: str, prefix: str = "", report: FieldReport | None = None
    ) -> dict[str, Any]:
        """Returns the fields to decode. `prefix`: the path of the object. `report` collects ignored fields.

        Raises UnsupportedParameter for a refused field. Raises UnknownParameter for an unknown field, unless
        `report` accepts unknown fields.
        """
        table = self.tables[scope]
        accepted_fields: dict[str, Any] = {}
        for name, value in fields.items():
            if (field := table.get(name)) is None:
                if report is None or not report.takes_unknown:
                    raise self._build_unknown_error(name, scope, prefix)
                report.paths.append(f"{prefix}{sanitize_key(name)}")
                continue
            if value is None:
                continue
            if field.support is FieldSupport.REFUSED:
                _require_accepted(field, value, prefix)
                continue
            if field.support is FieldSupport.IGNORED and report is not None:
                report.paths.append(f"{prefix}{name}")
            if not field.opaque:
                accepted_fields[name] = value
        return accepted_fields

    def _build_unknown_error(self, name: str, scope: str, prefix: str) -> AntiphonError:
        """Returns the error for an unknown field. The error names another endpoint that has this field, or
        the most similar known field."""
        shown_name = sanitize_key(name)
        other_endpoints = [
            str(endpoint)
            for endpoint in self._endpoints
            if endpoint != scope and name in self.tables[endpoint]
        ]
        if other_endpoints and scope in self._endpoints:
            hint = f"; it belongs to {other_endpoints[0]}"
        else:
            hint = _suggest_nearest(name, self.tables[scope])
        return UnknownParameter(f"unknown field {prefix}{shown_name}{hint}", param=f"{prefix}{shown_name}")


def _require_accepted(field: RequestField, value: object, prefix: str) -> None:
    """Raises UnsupportedParameter unless the value of the refused field is accepted."""
    if any(_are_equal_json(value, accepted_value) for accepted_value in field.accepted_values):
        return
    raise UnsupportedParameter(
        f"{prefix}{field.name} is not supported: {field.description}", param=f"{prefix}{field.name}"
    )


def _are_equal_json(value: object, accepted_value: object) -> bool:
    """Whether two values are equal as JSON. True is not equal to 1, but 0.0 is equal to 0."""
    return value == accepted_value and isinstance(value, bool) == isinstance(accepted_value, bool)


def _suggest_nearest(name: str, names: Iterable[str]) -> str:
    """Returns the end of a sentence that suggests the most similar known name; empty if there is none."""
    if len(name) > MAX_SHOWN_KEY:
        return ""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)
    return f"; did you mean {matches[0]}?" if matches else ""
