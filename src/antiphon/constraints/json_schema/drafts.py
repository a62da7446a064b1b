"""The drafts of JSON Schema: how a schema names one, and which keywords each has."""

from collections.abc import Mapping
from enum import IntEnum

Json = object


class Draft(IntEnum):
    """The drafts, the oldest first."""

    DRAFT_3 = 3
    DRAFT_4 = 4
    DRAFT_6 = 6
    DRAFT_7 = 7
    DRAFT_2019_09 = 8
    DRAFT_2020_12 = 9


SCHEMES = ("http://json-schema.org/", "https://json-schema.org/")

URIS = {
    "draft-03/schema": Draft.DRAFT_3,
    "draft-04/schema": Draft.DRAFT_4,
    "draft-06/schema": Draft.DRAFT_6,
    "draft-07/schema": Draft.DRAFT_7,
    "draft/2019-09/schema": Draft.DRAFT_2019_09,
    "draft/2020-12/schema": Draft.DRAFT_2020_12,
}
"""Meta-schemas, less how their addresses begin."""

OLDEST, NEWEST = Draft.DRAFT_3, Draft.DRAFT_2020_12


def find_draft(name: str) -> Draft | None:
    """The draft that `$schema` names; None for another meta-schema."""
    uri = name.strip().rstrip("#")
    return next((URIS.get(uri.removeprefix(each)) for each in SCHEMES if uri.startswith(each)), None)


def _since(first: Draft, names: str, last: Draft = NEWEST) -> dict[str, tuple[Draft, Draft]]:
    return dict.fromkeys(names.split(), (first, last))


KEYWORDS: Mapping[str, tuple[Draft, Draft]] = {
    **_since(
        OLDEST,
        "$ref type enum properties patternProperties additionalProperties required items minItems maxItems "
        "uniqueItems minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum",
    ),
    **_since(OLDEST, "divisibleBy extends disallow", Draft.DRAFT_3),
    **_since(OLDEST, "dependencies", Draft.DRAFT_7),
    **_since(OLDEST, "additionalItems", Draft.DRAFT_2019_09),
    **_since(Draft.DRAFT_4, "allOf anyOf oneOf not multipleOf minProperties maxProperties"),
    **_since(Draft.DRAFT_6, "const contains propertyNames"),
    **_since(Draft.DRAFT_7, "if then else"),
    **_since(
        Draft.DRAFT_2019_09,
        "dependentRequired dependentSchemas unevaluatedItems unevaluatedProperties minContains maxContains",
    ),
    **_since(Draft.DRAFT_2019_09, "$recursiveRef", Draft.DRAFT_2019_09),
    **_since(Draft.DRAFT_2020_12, "prefixItems $dynamicRef"),
}
"""Keywords that assert something, with the first and the last draft that has them."""

ANNOTATIONS = frozenset(
    "title description default examples $comment deprecated readOnly writeOnly contentMediaType "
    "contentEncoding contentSchema $schema $id $anchor $defs definitions $vocabulary $dynamicAnchor "
    "$recursiveAnchor".split()
)
"""Keywords of some draft that assert nothing where they are; the compiler does not see them."""

EXTENSION = "x-"
"""How the names of extensions begin: annotations by agreement."""

GUIDANCE = "x-guidance"
"""The one extension that asks something of the compiler. It is not obeyed, so it is named."""


def is_annotation(name: str, draft: Draft | None) -> bool:
    """Whether a keyword asserts nothing and everybody knows it."""
    if name == "id":
        return draft is None or draft <= Draft.DRAFT_4
    return name in ANNOTATIONS or (name.startswith(EXTENSION) and name != GUIDANCE)


def has_keyword(draft: Draft | None, name: str) -> bool:
    """Whether a keyword asserts something in a draft; None is a schema that names none, which may use all."""
    if name not in KEYWORDS:
        return False
    first, last = KEYWORDS[name]
    return draft is None or first <= draft <= last


def ignores_siblings(draft: Draft | None) -> bool:
    """Whether a reference makes the keywords beside it mean nothing."""
    return draft is not None and draft <= Draft.DRAFT_7
