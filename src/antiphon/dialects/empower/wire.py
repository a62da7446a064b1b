"""The JSON shapes of requests in Empower's dialect: OpenAI's, where the page says no other.

The request type can hold all that OpenAI's can; which fields are taken is said in `fields`.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_TOOLS,
    ChatMessage,
    CommonRequest,
    ToolChoiceShape,
    ToolShape,
)

LONGEST_REVISION = 200
LONGEST_TOKEN = 512
"""Characters of a hub's token; those of today have 37."""

ModelName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class ChatRequest(CommonRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /empower/api/v1/chat/completions."""

    messages: str | Annotated[list[str | ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "any", "required"] | ToolChoiceShape | None = None
    parallel_tool_calls: bool | None = None
    include_thinking: bool | None = None


class DeployRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /empower/api/v1/lora."""

    model_name: ModelName
    model_source: Literal["HF_HUB", "LOCAL"]
    hf_revision: Annotated[str, Meta(min_length=1, max_length=LONGEST_REVISION)] | None = None
    hf_token: Annotated[str, Meta(min_length=1, max_length=LONGEST_TOKEN)] | None = None
    name: ModelName | None = None
    base_model_name: ModelName | None = None
