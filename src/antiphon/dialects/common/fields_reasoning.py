"""Fields of reasoning, of chats and of messages."""

from antiphon.dialects.common.field_scopes import CHAT, MESSAGE
from antiphon.dialects.common.field_table import Field, refused, supported

REASONING: tuple[Field, ...] = (
    *supported(
        CHAT,
        reasoning_effort="How much a model that reasons shall do so, as its chat template can tell it: none, "
        "minimal, low, medium, high or xhigh; where it can only say whether, none or medium. What the model "
        "cannot do is refused.",
        include_reasoning="Whether what was thought is in the answer; true by default. It is counted either "
        "way.",
        thinking_token_budget="Most tokens of reasoning, after which it is made to end; 0 is none.",
    ),
    *supported(
        MESSAGE,
        reasoning_content="What the assistant thought before its content, for templates that show it. "
        "Where the model's does not read it, the header x-antiphon-ignored names it.",
        reasoning="The same by its newer name; both may be sent if they are equal.",
    ),
    refused("reasoning", CHAT, "it belongs to the Responses API; send reasoning_effort"),
)
