"""The table of all request fields of Empower's page and of its former engine.

The wire types have the supported fields. The refused fields are listed here.
"""

from enum import StrEnum

from antiphon.dialects.common.field_table import FieldTable, RequestField, declare_refused
from antiphon.dialects.empower import wire_types

PREFIX = "/empower/api/v1"


ELSEWHERE = "/v1/chat/completions has it"


class EmpowerScope(StrEnum):
    """The object that contains a field. The fields of messages and tools are in OpenAI's table."""

    CHAT = f"{PREFIX}/chat/completions"
    DEPLOY = f"{PREFIX}/lora"


CHAT = frozenset({EmpowerScope.CHAT})

OTHERS: tuple[RequestField, ...] = (
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
)

FIELD_TABLE = FieldTable(
    {EmpowerScope.CHAT: wire_types.ChatRequest, EmpowerScope.DEPLOY: wire_types.DeployRequest},
    OTHERS,
    endpoints=tuple(EmpowerScope),
)

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
