"""Empower's page of chats, and how Antiphon differs."""

from antiphon.dialects.common.product_pages import COUNT, PageRow, ProductPage

PAGE = ProductPage(
    "Empower",
    "POST /api/v1/chat/completions",
    "empower",
    "/empower/api/v1/chat/completions",
    (
        PageRow(
            "messages",
            "object[] | string[] | string",
            required=True,
            difference="the page says objects at one place and strings at another. Both are accepted. Each "
            "string of a list is a separate prompt, as the page says for n.",
        ),
        PageRow("model", "string", required=True),
        PageRow("frequency_penalty", "number", 0, -2, 2),
        PageRow("ignore_eos", "boolean", False),
        PageRow("max_tokens", "integer", 256),
        PageRow("n", "integer", 1, difference=COUNT + "; n is at most 128"),
        PageRow("presence_penalty", "number", 0, -2, 2),
        PageRow("stream", "boolean", False),
        PageRow("temperature", "number", 1, 0, 2),
        PageRow("top_p", "number", 1),
    ),
)
