"""The table of all request fields of Empower's page and of its former engine, and how Antiphon treats
them."""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    END_USER,
    FieldTable,
    RequestField,
    declare_refused,
    declare_supported,
)

PREFIX = "/empower/api/v1"


class EmpowerScope(StrEnum):
    """The object that contains a field. The fields of messages and tools are in OpenAI's table."""

    CHAT = f"{PREFIX}/chat/completions"
    DEPLOY = f"{PREFIX}/lora"


CHAT = frozenset({EmpowerScope.CHAT})

DEPLOY = frozenset({EmpowerScope.DEPLOY})

ELSEWHERE = "/v1/chat/completions has it"

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT,
        messages="The conversation as a list of messages, or a text as one message of the user. In a list "
        "of texts, each is a separate prompt.",
        model="Name of a deployed LoRA, or of a base model.",
        n="Choices of each prompt; 1 by default.",
        max_tokens="Most tokens of one choice; 256 by default.",
        temperature="0 to 2, 1 by default. 0 always takes the most likely token.",
        top_p="Only the most likely tokens whose probabilities add up to this; 0 to 1, 1 by default.",
        frequency_penalty="Subtracted from a token's logit for each time that it is in the output; -2 to 2,"
        " 0 by default.",
        presence_penalty="Subtracted from the logit of each token that is in the output; -2 to 2, 0 by "
        "default.",
        ignore_eos="Whether generation continues past the model's end tokens until max_tokens.",
        stream="Whether the answer comes as server-sent events.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether the model calls: auto, none, any or required (it must call), or one tool by "
        "its name.",
        include_thinking="Whether the content begins with the reasoning, as <thinking>...</thinking>. "
        "Refused if the model does not reason.",
        parallel_tool_calls="Whether one turn can make several calls; true by default.",
        response_format="text; json_object: any object, or one of `schema`; json_schema: JSON of a schema. A "
        "local model does not see it, and ignores its name and description. A vendor gets it "
        "unchanged.",
        stop="Texts that end a choice, at most four. They are not part of its text.",
        stop_token_ids="Token ids that end a choice, besides the model's own.",
        seed="The same seed gives the same draws.",
        top_k="Only the k most likely tokens; 0 or -1 keeps all.",
        min_p="Only tokens with at least this share of the probability of the most likely token; 0 "
        "keeps all.",
        repetition_penalty="Divides the positive logits, and multiplies the negative logits, of tokens in "
        "the prompt or the output. Above 0, at most 2; 1 does nothing.",
    ),
    *declare_supported(CHAT, user=END_USER),
    declare_refused("logit_bias", CHAT, "the page says so; /v1/chat/completions has it", {}),
    declare_refused("function_call", CHAT, "the page says so; send tools and tool_choice", "none", "auto"),
    declare_refused("functions", CHAT, "send tools", []),
    declare_refused("max_completion_tokens", CHAT, "send max_tokens"),
    declare_refused(
        "stream_options", CHAT, "usage always comes with each choice's last chunk; leave it out", {}
    ),
    declare_refused("logprobs", CHAT, ELSEWHERE, False),
    declare_refused("top_logprobs", CHAT, ELSEWHERE, 0),
    declare_refused("reasoning_effort", CHAT, ELSEWHERE),
    declare_refused("best_of", CHAT, "/v1/completions has it", 1),
    declare_refused("echo", CHAT, "a conversation is not repeated; /v1/completions has echo", False),
    declare_refused("use_beam_search", CHAT, "beam search is not built; leave it out", False),
    declare_refused("add_generation_prompt", CHAT, ELSEWHERE, True),
    declare_refused("skip_special_tokens", CHAT, ELSEWHERE, True),
    declare_refused("spaces_between_special_tokens", CHAT, ELSEWHERE, True),
    *declare_supported(
        DEPLOY,
        model_name="With HF_HUB a repository, OWNER/REPO or OWNER/REPO:FILE.gguf. With LOCAL the path "
        "of a GGUF adapter or PEFT directory, below a directory that the operator allows.",
        model_source="HF_HUB; or LOCAL, which Empower does not have.",
        hf_revision="A commit, tag or branch; main by default. The server deploys the current commit of it.",
        hf_token="A token of the hub that can read the repository. It is used once and not kept.",
        name="The name that callers send as model; model_name by default.",
        base_model_name="The base model. You can leave it out if there is only one. Empower does not have "
        "this field.",
    ),
)

FIELD_TABLE = FieldTable(FIELDS, tuple(EmpowerScope), endpoints=tuple(EmpowerScope))

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
