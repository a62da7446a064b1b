"""Several grammars as one text of the compiler's: a grammar, and those that it refers to by their names."""

import json

Part = dict[str, object]


def join_grammars(first: str, name: str, other: str) -> str:
    """A grammar with another one, to which it refers by `name`."""
    named, *more = _listed(other)
    return json.dumps({"grammars": [*_listed(first), named | {"name": name}, *more]})


def _listed(grammar: str) -> list[Part]:
    """A grammar and those that it refers to; one that is not JSON is written in Lark and alone."""
    if not grammar.startswith("{"):
        return [{"lark_grammar": grammar}]
    found: list[Part] = json.loads(grammar)["grammars"]
    return found
