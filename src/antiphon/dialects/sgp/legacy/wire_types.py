"""Wire types of the older API's requests and answers, as the product's client defines them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from antiphon.dialects.common.request_types import (
    LONGEST_TEXT,
    MAX_MESSAGES,
    MAX_STOPS,
    Fraction,
    MemoryShape,
    Name,
    Penalty,
    PositiveInt,
    StopText,
    TemplateSource,
)
from antiphon.dialects.common.response_types import FinishName

MAX_PARTS = 1024
"""The most parts of one content, and the most images of one prompt. No model takes as many images."""

AccountId = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
Detail = Literal["auto", "low", "high"]


class LegacyImageUrl(Struct, frozen=True, forbid_unknown_fields=True):
    """An image as a data: URL, or as an address that only a vendor opens."""

    url: str
    detail: Detail | None = None


class LegacyImageData(Struct, frozen=True, forbid_unknown_fields=True):
    """An image in base64."""

    data: str
    media_type: str
    detail: Detail | None = None
    type: Literal["base64"] | None = None


class LegacyPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a content. It has one of three values; `type` names it and can be missing."""

    type: Literal["text", "image_url", "image_data"] | None = None
    text: str | None = None
    image_url: LegacyImageUrl | None = None
    image_data: LegacyImageData | None = None


class LegacyMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of the conversation."""

    content: str | Annotated[list[LegacyPart], Meta(min_length=1, max_length=MAX_PARTS)]
    """The text. Only a user's turn can have a list of parts."""
    role: Literal["user", "assistant", "system"] | None = None
    """The user's role if it is missing."""


class LegacyModelParameters(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of a generation."""

    temperature: Fraction | None = None
    max_tokens: PositiveInt | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    top_k: PositiveInt | None = field(default=None, name="topK")
    top_p: Fraction | None = field(default=None, name="topP")
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None


class LegacyRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields that both endpoints share."""

    model: Name
    account_id: AccountId | None = None
    model_parameters: LegacyModelParameters | None = None
    stream: bool | None = None


class LegacyChatRequest(LegacyRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /sgp/v4/chat-completions."""

    messages: Annotated[list[LegacyMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    chat_template: TemplateSource | None = None
    instructions: str | None = None
    memory_strategy: MemoryShape | None = None


class LegacyPromptImage(Struct, frozen=True, forbid_unknown_fields=True):
    """An image of a text completion, as a data: URL or an address that only a vendor opens."""

    image_url: str
    detail: Detail | None = None


class LegacyTextRequest(LegacyRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /sgp/v4/completions."""

    prompt: str
    images: Annotated[list[LegacyPromptImage], Meta(max_length=MAX_PARTS)] | None = None


class LegacyUsage(Struct, frozen=True):
    """The number of tokens of the request."""

    prompt: int
    completion: int
    total: int


class LegacyAnswerMessage(Struct, frozen=True, kw_only=True):
    """The assistant's message; in a stream, more of its text."""

    role: Literal["assistant"] = "assistant"
    content: str


class LegacyChatChoice(Struct, frozen=True, kw_only=True):
    """The only choice of a chat."""

    message: LegacyAnswerMessage
    finish_reason: FinishName | None
    """In a stream, null until the last event."""


class LegacyChatAnswer(Struct, frozen=True, kw_only=True):
    """Answer of a chat, and one event of its stream."""

    chat_completion: LegacyChatChoice
    token_usage: LegacyUsage | None
    """In a stream, null until the last event. Null too if a vendor tells none."""


class LegacyTextChoice(Struct, frozen=True, kw_only=True):
    """The only choice of a text completion."""

    text: str
    """The text; in a stream, more of it."""
    finish_reason: FinishName | None
    """In a stream, null until the last event."""


class LegacyTextAnswer(Struct, frozen=True, kw_only=True):
    """Answer of a text completion, and one event of its stream."""

    completion: LegacyTextChoice
    token_usage: LegacyUsage | None
    """In a stream, null until the last event. Null too if a vendor tells none."""
