"""Fireworks' page of text completions, and how Antiphon differs."""

from antiphon.dialects.common.product_pages import COUNT, USER, PageRow, ProductPage

MIROSTAT = (
    "Mirostat is off unless you send one of its two fields. With the page's default, temperature, top_k and "
    "top_p would have no effect. The product's later documentation says off, too."
)

PAGE = ProductPage(
    "Fireworks",
    "POST /inference/v1/completions",
    "fireworks",
    "/fireworks/inference/v1/completions",
    (
        PageRow("model", "string", required=True),
        PageRow("prompt", "string | string[] | integer[] | integer[][]", required=True),
        PageRow("context_length_exceeded_behavior", "truncate or error", "truncate"),
        PageRow("echo", "boolean | null", False),
        PageRow("frequency_penalty", "number | null", 0, -2, 2),
        PageRow("ignore_eos", "boolean | null", False),
        PageRow(
            "images",
            "string[]",
            difference="for a vendor's model, a prompt with images becomes a message of the user",
        ),
        PageRow(
            "logprobs",
            "integer | null",
            low=0,
            high=5,
            difference="with echo the prompt's first token has 0.0, because the product's client accepts "
            "only numbers; /v1 has null",
        ),
        PageRow(
            "max_tokens",
            "integer | null",
            16,
            low=0,
            difference="0 is accepted only with echo, to score a prompt",
        ),
        PageRow("mirostat_lr", "number | null", 0.1, difference=MIROSTAT),
        PageRow("mirostat_target", "number | null", 1.5, difference=MIROSTAT),
        PageRow("n", "integer | null", 1, 1, 128, difference=COUNT),
        PageRow("presence_penalty", "number | null", 0, -2, 2),
        PageRow(
            "repetition_penalty",
            "number | null",
            1,
            0,
            2,
            difference="0 counts as a millionth",
        ),
        PageRow("response_format", "object | null"),
        PageRow("stop", "string | string[]"),
        PageRow("stream", "boolean | null", False),
        PageRow("temperature", "number | null", 1, 0, 2),
        PageRow("top_k", "integer | null", low=1, high=128),
        PageRow("top_p", "number | null", 1, 0, 1),
        PageRow("user", "string | null", difference=USER),
    ),
)
