"""JamAI Base's page of chats, and how Antiphon differs."""

from antiphon.dialects.common.product_pages import COUNT, USER, PageHeader, PageRow, ProductPage

FOUR_STOPS = "at most four texts, as at /v1"

PAGE = ProductPage(
    "JamAI Base",
    "POST /api/v1/chat/completions",
    "jamai",
    "/jamai/api/v1/chat/completions",
    (
        PageRow("model", "string", ""),
        PageRow("rag_params", "object"),
        PageRow("tools", "object[]"),
        PageRow("tool_choice", "none, auto, required or a tool"),
        PageRow(
            "temperature",
            "number",
            0.2,
            0.001,
            difference="0 is accepted; at most 2",
        ),
        PageRow("top_p", "number", 0.6, 0.001, difference="at most 1"),
        PageRow("stream", "boolean", False),
        PageRow("max_tokens", "integer", 2048, 1, difference="lowered to what fits"),
        PageRow("stop", "string[]", difference=FOUR_STOPS),
        PageRow("presence_penalty", "number", 0, -2, 2),
        PageRow("frequency_penalty", "number", 0, -2, 2),
        PageRow("logit_bias", "object"),
        PageRow("id", "string", ""),
        PageRow("messages", "object[]", required=True),
        PageRow("max_completion_tokens", "integer", low=1, difference="lowered to what fits"),
        PageRow("n", "integer", 1, difference=COUNT + "; n is at most 128"),
        PageRow("user", "string", difference=USER),
    ),
    (
        PageHeader(
            "Authorization",
            "A user's access token, or a service key, as Bearer KEY.",
            required=True,
            difference="not needed without keys",
        ),
        PageHeader(
            "X-USER-ID",
            "The user for whom a service key acts: a member of its project. An empty value means none.",
            difference="optional with a service key too",
        ),
        PageHeader(
            "X-PROJECT-ID",
            "One of the key's projects; otherwise a 401. The product's client sends `default`: if the"
            " key has no project with this id, it means the key's own project.",
        ),
    ),
)
