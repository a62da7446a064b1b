"""The types that a schema allows for arguments."""

import time
from typing import Any

import pytest

from antiphon.constraints.argument_types import ALL_TYPES, list_argument_types

LEVELS = 24


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_a_schema_with_millions_of_alternatives_is_followed_once(keyword):
    """Each level refers twice to the next one. Whoever sends tools would stop the server otherwise."""
    definitions: dict[str, Any] = {
        f"level{number}": {keyword: [{"$ref": f"#/$defs/level{number + 1}"} for _ in range(2)]}
        for number in range(LEVELS)
    }
    definitions[f"level{LEVELS}"] = {"type": "string"}
    whole = {
        "type": "object",
        "$defs": definitions | {"loop": {keyword: [{"$ref": "#/$defs/loop"}, {"type": "null"}]}},
        "properties": {
            "text": {"$ref": f"#/$defs/level{LEVELS - 8}"},
            "loop": {"$ref": "#/$defs/loop"},
            "deep": {"$ref": "#/$defs/level0"},
        },
        "allOf": [{"$ref": "#/$defs/level0"}],
    }
    begin = time.process_time()
    types = list_argument_types(whole)
    assert types["text"] == {"string"} and types["deep"] == ALL_TYPES
    assert "null" in types["loop"]
    assert time.process_time() - begin < 1
