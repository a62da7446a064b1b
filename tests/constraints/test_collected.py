"""How much the collection of schemas holds: a promise about what the other tests try."""

import json

from jsonschema_specifications import REGISTRY

from tests.constraints.collected import REFUSED, TAKEN
from tests.support.constraint_texts import used
from tests.support.everyday_schemas import EVERYDAY

VOCABULARIES = "core applicator unevaluated validation meta-data format-annotation content".split()


def keywords() -> set[str]:
    """Of the 2020-12 draft, as its own schemas name them."""
    at = "https://json-schema.org/draft/2020-12/meta/"
    return {name for each in VOCABULARIES for name in REGISTRY.contents(at + each)["properties"]}


def test_the_collected_schemas_use_every_keyword_of_the_draft() -> None:
    collected = [*TAKEN, *REFUSED.values(), *EVERYDAY.values()]
    assert len({json.dumps(each, sort_keys=True) for each in collected}) >= 200
    assert len(keywords()) >= 57
    missing = keywords() - {name for schema in collected for name in used(schema)}
    assert not missing
