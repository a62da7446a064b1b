"""What Schemathesis does to each request before it sends it: most name a model that there is, and none asks
for more than a few tokens. It runs as a command, and loads this by SCHEMATHESIS_HOOKS."""

from typing import Any
from zlib import crc32

import schemathesis

MOST_TOKENS = 4
SANE = 1 << 20
"""A number of tokens up to which it is cut: what is above may be refused, which is asked for too."""

WITH_OPTIONS = ("/sgp/v4/chat-completions", "/sgp/v4/completions")
LIMITS = ("max_tokens", "max_completion_tokens")


@schemathesis.hook
def before_call(_: Any, case: Any, **__: Any) -> None:
    """Changes the body in place of the one that was generated."""
    if isinstance(case.body, dict) and "completions" in case.path:
        case.body = modest_options(case.body) if case.path in WITH_OPTIONS else modest(case.body)
    elif isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body = named(case.body)


def modest(body: dict[str, Any]) -> dict[str, Any]:
    """The same with few tokens, where their number is not itself what is wrong."""
    given = {name: body[name] for name in LIMITS if isinstance(body.get(name), int | float)}
    few = {name: MOST_TOKENS for name, value in given.items() if MOST_TOKENS < value < SANE}
    return named(body) | (few if given else {"max_tokens": MOST_TOKENS})


def modest_options(body: dict[str, Any]) -> dict[str, Any]:
    """The same where the number of tokens stands in an object of its own."""
    options = body.get("model_parameters") or {}
    return named(body) | ({"model_parameters": modest(options)} if isinstance(options, dict) else {})


def named(body: dict[str, Any]) -> dict[str, Any]:
    """The same of the model that is served; one in eight keeps its own, which there is not."""
    name = body.get("model")
    if not isinstance(name, str) or not name or crc32(name.encode("utf-8", "replace")) % 8 == 0:
        return body
    return body | {"model": "cantor"}
