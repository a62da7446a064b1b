"""The table of the older API's request fields, and how Antiphon treats them."""

from enum import StrEnum

from antiphon.dialects.common.field_table import MEMORY, FieldTable, RequestField, declare_supported


class LegacyScope(StrEnum):
    """The object that contains a field."""

    CHAT = "/sgp/v4/chat-completions"
    TEXT = "/sgp/v4/completions"
    PARAMETERS = "model_parameters of the older API"
    MESSAGE = "message of the older API"
    PART = "content part of the older API"
    IMAGE_URL = "image_url of the older API"
    IMAGE_DATA = "image_data of the older API"
    PROMPT_IMAGE = "image of /sgp/v4/completions"


CHAT = frozenset({LegacyScope.CHAT})
TEXT = frozenset({LegacyScope.TEXT})

DETAIL = "How closely the model looks at the image: auto, low or high."

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT | TEXT,
        model="Name of a model.",
        account_id="The tag account_id in the records of usage. It does not choose the project; the key "
        "does. Ignored without keys.",
        model_parameters="The options of the generation.",
        stream="Whether the answer comes as server-sent events.",
    ),
    *declare_supported(
        CHAT,
        messages="The conversation so far.",
        chat_template="A Jinja template instead of the model's, if the operator set `request_templates`.",
        instructions="A system message before the conversation.",
        memory_strategy=MEMORY,
    ),
    *declare_supported(
        TEXT,
        prompt="The text to continue. With images, it is the text of a user's message.",
        images="Images for a model that accepts them. They and the prompt become one message of the user.",
    ),
    *declare_supported(
        {LegacyScope.PARAMETERS},
        temperature="0 to 1, 0.2 by default. 0 always takes the most likely token.",
        max_tokens="Most tokens of the answer; the rest of the context by default.",
        stop_sequences="Texts that end the answer, at most four. They are not part of its text.",
        topK="Only the k most likely tokens.",
        topP="Only the most likely tokens whose probabilities add up to this; 0 to 1.",
        frequency_penalty="Subtracted from a token's logit for each time that it is in the output; -2 to 2.",
        presence_penalty="Subtracted from the logit of each token that is in the output; -2 to 2.",
    ),
    *declare_supported(
        {LegacyScope.MESSAGE},
        role="user, assistant or system; user by default.",
        content="The text, or a list of parts in a message of the user.",
    ),
    *declare_supported(
        {LegacyScope.PART},
        type="text, image_url or image_data; you can leave it out.",
        text="The text of a text part.",
        image_url="An image by its address.",
        image_data="An image in base64.",
    ),
    *declare_supported(
        {LegacyScope.IMAGE_URL},
        url="A data: URL with base64, or an https: address, which only the vendor opens.",
        detail=DETAIL,
    ),
    *declare_supported(
        {LegacyScope.IMAGE_DATA},
        data="The image in base64.",
        media_type="image/png, image/jpeg, image/gif or image/webp.",
        detail=DETAIL,
        type="base64.",
    ),
    *declare_supported(
        {LegacyScope.PROMPT_IMAGE},
        image_url="A data: URL with base64, or an https: address, which only the vendor opens.",
        detail=DETAIL,
    ),
)

filter_fields = FieldTable(FIELDS, tuple(LegacyScope), endpoints=(LegacyScope.CHAT, LegacyScope.TEXT)).filter
