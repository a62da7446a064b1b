"""By which kind of engine or model a field is supported. A field means the same in every dialect, so its name
says it."""

from collections.abc import Mapping
from enum import StrEnum


class Need(StrEnum):
    """What a field takes to act; where it is missing, the field is refused by its name."""

    NOTHING = "every engine"
    TOKENS = "a token engine"
    CONSTRAINTS = "an engine that keeps constraints"
    TEMPLATE = "a chat template"
    REASONING = "a model that reasons"
    ADAPTERS = "an engine that takes adapters"
    EMBEDDING = "an embedding model"
    VISION = "a model that sees"

    @property
    def explained(self) -> str:
        """A sentence for the docs."""
        return _EXPLAINED[self]


_EXPLAINED: Mapping[Need, str] = {
    Need.NOTHING: "whatever turns a request into text.",
    Need.TOKENS: "one behind the seam `TokenEngine`, whose tokens are drawn and seen here; the embedded "
    "engine is one, and every model that is served today has it.",
    Need.CONSTRAINTS: "a token engine that compiles a constraint to masks; the embedded one does.",
    Need.TEMPLATE: "the model's own, or where `chat_template` is taken the request's.",
    Need.REASONING: "one whose chat template writes what it thinks apart from what it says.",
    Need.ADAPTERS: "one that applies LoRA adapters, each sequence its own; the embedded one does.",
    Need.EMBEDDING: "one that makes vectors and no text.",
    Need.VISION: "one that takes images; none is served yet.",
}

_NAMES: Mapping[Need, str] = {
    Need.TOKENS: "top_k min_p typical_p repetition_penalty logit_bias mirostat_target mirostat_lr min_tokens "
    "ignore_eos allowed_token_ids stop_token_ids cache_salt echo best_of logprobs top_logprobs "
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
    "reasoning_history",
    Need.ADAPTERS: "lora_name lora_path load_inplace base_model_name model_name model_source hf_revision "
    "hf_token",
    Need.EMBEDDING: "input encoding_format dimensions",
    Need.VISION: "images",
}

NEEDS: Mapping[str, Need] = {name: need for need, names in _NAMES.items() for name in names.split()}
"""By name; what is not listed needs nothing."""
