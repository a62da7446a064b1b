"""Makes calls with jamaibase, unchanged, as `tests.contract.sdk_calls` says: `JamAI.rerank`,
`JamAIAsync.generate_chat_completions`. A line of standard input also has the `options` of the clients. An
object with `$type` is a model of `jamaibase.types` with the rest of the object.
"""

from functools import cache
from typing import Any

from tests.contract.sdk_calls import Owners, print_code, serve_calls


def make_owners(told: dict[str, Any]) -> Owners:
    """Both clients with these options, and `print_code`, which runs a page's code."""
    return make_clients(**told["options"]) | {"print_code": lambda code: {"printed": print_code(code)}}


@cache
def make_clients(**options: Any) -> Owners:
    """Clients that keep their connections."""
    import jamaibase

    return {name: getattr(jamaibase, name)(**options) for name in ("JamAI", "JamAIAsync")}


def prepare(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call."""
    return {name: _build(value) for name, value in given.items()}


def _build(value: Any) -> Any:
    import jamaibase.types

    if not isinstance(value, dict) or "$type" not in value:
        return value
    fields = {name: each for name, each in value.items() if name != "$type"}
    return getattr(jamaibase.types, value["$type"])(**fields)


if __name__ == "__main__":
    serve_calls(make_owners, prepare)
