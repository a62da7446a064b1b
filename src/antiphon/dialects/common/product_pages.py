"""The parameters on the products' documentation pages: type, default, range, and how Antiphon differs.

Bounds are inclusive, because some defaults on the pages equal a bound. docs/parameters.md contains this next
to the dialects' tables. tests/contract/test_pages.py tests the server with it.
"""

from enum import Enum

from antiphon.domain.values import Struct


class Unstated(Enum):
    """A mark for a value that the page does not state."""

    NONE = "none on the page"


UNSTATED = Unstated.NONE


class PageRow(Struct, frozen=True):
    """One parameter on a product's page."""

    name: str
    type: str
    """The type as the page writes it, with `|null` if null is accepted."""
    default: object = UNSTATED
    low: float | None = None
    high: float | None = None
    required: bool = False
    difference: str = ""
    """How Antiphon differs from the page, and why. Empty without a difference."""

    @property
    def is_nullable(self) -> bool:
        """Whether the page accepts null."""
        return self.type.endswith("| null")


class PageHeader(Struct, frozen=True):
    """One header on a product's page."""

    name: str
    meaning: str
    """The effect of the header on this server."""
    required: bool = False
    difference: str = ""
    """See `PageRow`."""


class ProductPage(Struct, frozen=True):
    """One product's page."""

    product: str
    endpoint: str
    """The product's own endpoint."""
    dialect: str
    """The dialect that implements the page."""
    served_at: str
    """The path on this server."""
    rows: tuple[PageRow, ...]
    headers: tuple[PageHeader, ...] = ()
    """The headers that the page lists among its parameters."""


MIROSTAT = (
    "Mirostat is off unless you send one of its two fields. With the page's default, temperature, top_k and "
    "top_p would have no effect. The product's later documentation says off, too."
)
COUNT = "prompts times n are at most 256, because of the memory"
USER = "is in the records of usage; the server does not look for abuse"

FIREWORKS = ProductPage(
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
            difference="a prompt with images becomes a message of the user",
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

EMPOWER = ProductPage(
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

FOUR_STOPS = "at most four texts, as at /v1"

JAMAI = ProductPage(
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

SGP = ProductPage(
    "Scale SGP",
    "POST /v4/beta/chat/completions",
    "sgp",
    "/sgp/v4/beta/chat/completions",
    (
        PageRow("model", "string", required=True),
        PageRow("messages", "object[]", required=True),
        PageRow("chat_template", "string"),
        PageRow("chat_template_kwargs", "object"),
        PageRow("guided_json", "object"),
        PageRow("guided_regex", "string"),
        PageRow("guided_choice", "string[]"),
        PageRow("guided_grammar", "string"),
        PageRow("guided_decoding_backend", "string"),
        PageRow("guided_whitespace_pattern", "string"),
        PageRow("include_stop_str_in_output", "boolean"),
        PageRow("memory_strategy", "object"),
        PageRow("stream", "boolean", False),
        PageRow("stream_options", "object"),
        PageRow("stop", "string | string[]"),
        PageRow("frequency_penalty", "number", low=-2, high=2),
        PageRow("logit_bias", "object"),
        PageRow("logprobs", "boolean"),
        PageRow("top_logprobs", "integer", low=0, high=20),
        PageRow("max_tokens", "integer"),
        PageRow("n", "integer"),
        PageRow("presence_penalty", "number", low=-2, high=2),
        PageRow("seed", "integer"),
        PageRow("suffix", "string"),
        PageRow("temperature", "number"),
        PageRow("top_p", "number"),
        PageRow("response_format", "object"),
        PageRow("user", "string"),
        PageRow("audio", "object"),
        PageRow("inference_timeout", "number"),
        PageRow("max_completion_tokens", "integer"),
        PageRow("modalities", "text or audio, in a list"),
        PageRow("inference_extra_params", "object"),
        PageRow("tools", "object[]"),
        PageRow("tool_choice", "none, auto or required"),
        PageRow("parallel_tool_calls", "boolean"),
        PageRow("best_of", "integer"),
        PageRow("inference_extra_headers", "object"),
        PageRow("prediction", "object"),
        PageRow("top_k", "integer"),
    ),
)

PAGES = (FIREWORKS, EMPOWER, JAMAI, SGP)
