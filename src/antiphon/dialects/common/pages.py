"""What the products' pages say of each parameter, as data: type, default, range (bounds are inclusive: the
pages' own defaults lie on them), and what differs here. docs/parameters.md prints it beside the dialects'
tables, and tests/contract/test_pages.py holds the server to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Unsaid(Enum):
    """A page's silence."""

    NONE = "none on the page"


UNSAID = Unsaid.NONE


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter of a page."""

    name: str
    type: str
    """As the page writes it; a bar before null where null is taken."""
    default: object = UNSAID
    low: float | None = None
    high: float | None = None
    required: bool = False
    differs: str = ""
    """What is otherwise here, and why; nothing where nothing is."""

    @property
    def nullable(self) -> bool:
        return self.type.endswith("| null")


@dataclass(frozen=True, slots=True)
class Page:
    """One product's page."""

    product: str
    endpoint: str
    """The product's own."""
    dialect: str | None
    """Name of the dialect that speaks it; None where that is not built."""
    place: str
    """Where it is served here; of a page that is not built, the place of /v1 that comes nearest."""
    rows: tuple[Row, ...]


MIROSTAT = (
    "Mirostat is off unless one of its two fields is sent: were the page's default always on, temperature "
    "would steer alone, and top_k and top_p do nothing; the product's later documentation says off, too"
)
COUNT = "prompts times n are at most 256, which bounds what one request may hold in memory"
USER = "nothing here looks for abuse; it stands in the records of usage"

FIREWORKS = Page(
    "Fireworks",
    "POST /inference/v1/completions",
    "fireworks",
    "/fireworks/inference/v1/completions",
    (
        Row("model", "string", required=True),
        Row("prompt", "string | string[] | integer[] | integer[][]", required=True),
        Row("context_length_exceeded_behavior", "truncate or error", "truncate"),
        Row("echo", "boolean | null", False),
        Row("frequency_penalty", "number | null", 0, -2, 2),
        Row("ignore_eos", "boolean | null", False),
        Row(
            "images",
            "string[]",
            differs="their number is checked against the <image> marks of the prompt; then they are refused, "
            "as no model that is served here sees yet",
        ),
        Row(
            "logprobs",
            "integer | null",
            low=0,
            high=5,
            differs="with echo the prompt's first token, which nothing precedes, has 0.0 where /v1 has null: "
            "the product's own client takes numbers only",
        ),
        Row(
            "max_tokens",
            "integer | null",
            16,
            low=0,
            differs="0 is taken only with echo, to score a prompt; alone it would ask for nothing",
        ),
        Row("mirostat_lr", "number | null", 0.1, differs=MIROSTAT),
        Row("mirostat_target", "number | null", 1.5, differs=MIROSTAT),
        Row("n", "integer | null", 1, 1, 128, differs=COUNT),
        Row("presence_penalty", "number | null", 0, -2, 2),
        Row(
            "repetition_penalty",
            "number | null",
            1,
            0,
            2,
            differs="0, by which nothing can be divided, is taken as a millionth",
        ),
        Row("response_format", "object | null"),
        Row("stop", "string | string[]"),
        Row("stream", "boolean | null", False),
        Row("temperature", "number | null", 1, 0, 2),
        Row("top_k", "integer | null", low=1, high=128),
        Row("top_p", "number | null", 1, 0, 1),
        Row("user", "string | null", differs=USER),
    ),
)

EMPOWER = Page(
    "Empower",
    "POST /api/v1/chat/completions",
    "empower",
    "/empower/api/v1/chat/completions",
    (
        Row(
            "messages",
            "object[] | string[] | string",
            required=True,
            differs="the page's two descriptions disagree (objects; an array of strings or a string): all "
            "are taken, and each string of an array is a prompt of its own, as the page says under n",
        ),
        Row("model", "string", required=True),
        Row("frequency_penalty", "number", 0, -2, 2),
        Row("ignore_eos", "boolean", False),
        Row("max_tokens", "integer", 256),
        Row("n", "integer", 1, differs=COUNT + "; n is at most 128"),
        Row("presence_penalty", "number", 0, -2, 2),
        Row("stream", "boolean", False),
        Row("temperature", "number", 1, 0, 2),
        Row("top_p", "number", 1),
    ),
)

JAMAI = Page(
    "JamAI Base",
    "POST /api/v1/chat/completions",
    None,
    "/v1/chat/completions",
    (
        Row("model", "string", ""),
        Row("rag_params", "object"),
        Row("tools", "object[]"),
        Row("tool_choice", "none, auto, required or a tool"),
        Row("temperature", "number", 0.2, 0.001),
        Row("top_p", "number", 0.6, 0.001),
        Row("stream", "boolean", False),
        Row("max_tokens", "integer", 2048, 1),
        Row("stop", "string[]"),
        Row("presence_penalty", "number", 0, -2, 2),
        Row("frequency_penalty", "number", 0, -2, 2),
        Row("logit_bias", "object"),
        Row("id", "string", ""),
        Row("messages", "object[]", required=True),
        Row("max_completion_tokens", "integer", low=1),
        Row("n", "integer", 1),
        Row("user", "string"),
    ),
)

SGP = Page(
    "Scale SGP",
    "POST /v4/beta/chat/completions",
    None,
    "/v1/chat/completions",
    (
        Row("model", "string", required=True),
        Row("messages", "object[]", required=True),
        Row("chat_template", "string"),
        Row("chat_template_kwargs", "object"),
        Row("guided_json", "object"),
        Row("guided_regex", "string"),
        Row("guided_choice", "string[]"),
        Row("guided_grammar", "string"),
        Row("guided_decoding_backend", "string"),
        Row("guided_whitespace_pattern", "string"),
        Row("include_stop_str_in_output", "boolean"),
        Row("memory_strategy", "object"),
        Row("stream", "boolean", False),
        Row("stream_options", "object"),
        Row("stop", "string | string[]"),
        Row("frequency_penalty", "number", low=-2, high=2),
        Row("logit_bias", "object"),
        Row("logprobs", "boolean"),
        Row("top_logprobs", "integer", low=0, high=20),
        Row("max_tokens", "integer"),
        Row("n", "integer"),
        Row("presence_penalty", "number", low=-2, high=2),
        Row("seed", "integer"),
        Row("suffix", "string"),
        Row("temperature", "number"),
        Row("top_p", "number"),
        Row("response_format", "object"),
        Row("user", "string"),
        Row("audio", "object"),
        Row("inference_timeout", "number"),
        Row("max_completion_tokens", "integer"),
        Row("modalities", "text or audio, in a list"),
        Row("inference_extra_params", "object"),
        Row("tools", "object[]"),
        Row("tool_choice", "none, auto or required"),
        Row("parallel_tool_calls", "boolean"),
        Row("best_of", "integer"),
        Row("inference_extra_headers", "object"),
        Row("prediction", "object"),
        Row("top_k", "integer"),
    ),
)

PAGES = (FIREWORKS, EMPOWER, JAMAI, SGP)


def built() -> Iterator[Page]:
    """The pages that a dialect speaks."""
    return (page for page in PAGES if page.dialect is not None)
