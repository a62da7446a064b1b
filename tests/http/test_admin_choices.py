"""Fields of the admin API that take one of a few words name them all when they refuse another."""

import json
from enum import Enum

import pytest
from msgspec import Struct, inspect

from antiphon.bodies.strict_json import decode_json
from antiphon.errors import InvalidValue
from antiphon.http.admin import keys, limits, prices, recording, tenants


def found(shape, kind, path=()):
    """Paths of the fields that take one of a few words, with these words and the shape."""
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from found(shape, each, path)
    elif isinstance(kind, inspect.ListType):
        yield from found(shape, kind.item_type, (*path, 0))
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from found(shape, field.type, (*path, field.encode_name))
    elif isinstance(kind, inspect.EnumType) and issubclass(kind.cls, Enum):
        yield shape, path, [each.value for each in kind.cls]


PLACES = (tenants, keys, limits, prices, recording)
FIELDS = [
    case
    for place in PLACES
    for shape in vars(place).values()
    if isinstance(shape, type) and issubclass(shape, Struct) and shape.__struct_config__.forbid_unknown_fields
    for case in found(shape, inspect.type_info(shape))
]


def whole(kind):
    """Something that a type takes, without what may be left out."""
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.StructType):
        return {each.encode_name: whole(each.type) for each in kind.fields if each.required}
    if isinstance(kind, inspect.EnumType):
        return next(iter(kind.cls)).value
    return 1 if isinstance(kind, inspect.IntType) else "a"


def placed(kind, path, word):
    """The same with a word at a path."""
    if not path:
        return word
    if isinstance(kind, inspect.UnionType):
        (kind,) = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    if isinstance(kind, inspect.ListType):
        return [placed(kind.item_type, path[1:], word)]
    (field,) = [each for each in kind.fields if each.encode_name == path[0]]
    return whole(kind) | {path[0]: placed(field.type, path[1:], word)}


@pytest.mark.parametrize(
    ("shape", "path", "words"), FIELDS, ids=[f"{shape.__name__}-{path}" for shape, path, _ in FIELDS]
)
def test_a_refusal_names_what_is_taken(shape, path, words):
    body = inspect.type_info(shape), path, "nonsense"
    with pytest.raises(InvalidValue) as refused:
        decode_json(json.dumps(placed(*body)).encode(), shape)
    assert all(word in refused.value.message for word in words)
    assert "accepted values" not in refused.value.message


def test_there_are_such_fields():
    assert {path[0] for _, path, _ in FIELDS} >= {"kind", "role", "subject", "measure", "limits", "redact"}
