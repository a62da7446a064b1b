"""Several grammars as one text of the compiler's: a grammar, and those that it refers to by their names."""

import json

Part = dict[str, object]


def join_grammars(first: str, name: str, other: str) -> str:
    """A grammar with another one, to which it refers by `name`."""
    named, *more = _list_grammars(other)
    return json.dumps({"grammars": [*_list_grammars(first), named | {"name": name}, *more]})


def _list_grammars(grammar: str) -> list[Part]:
    """A grammar and those that it refers to; one that is not JSON is written in Lark and alone."""
    if not grammar.startswith("{"):
        return [{"lark_grammar": grammar}]
    found: list[Part] = json.loads(grammar)["grammars"]
    return found
