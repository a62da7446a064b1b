"""What is taken of schemas of every draft is kept: random walks over the masks satisfy the schema by its
draft."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.json_schema.lowering import relax_schema
from antiphon.constraints.matching import CompilerVocabulary
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import InvalidValue, UnsupportedParameter
from tests.constraints.generated import generate
from tests.constraints.validation import accepts
from tests.constraints.written import WRITTEN
from tests.support.constraint_texts import vocabulary, walked
from tests.support.everyday_schemas import EVERYDAY

UNTAKEN = 0.1
"""Share of the schemas as people write them that may be refused."""


def walk(schema: Any, words: CompilerVocabulary, walks: int) -> str:
    """What became of a schema: exact, relaxed or refused. Every walk of an exact one has to satisfy it."""
    try:
        made, names = relax_schema(schema, "f")
        grammar = check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(made)), words)
    except (InvalidValue, UnsupportedParameter):
        return "refused"
    for seed in range(walks):
        text = walked(grammar, words, seed, 400)
        assert names or text is None or accepts(schema, text), (schema, text)
    return "relaxed" if names else "exact"


def count(schemas: Iterable[Any], walks: int) -> Counter[str]:
    words = vocabulary()
    return Counter(walk(schema, words, walks) for schema in schemas)


def test_schemas_as_people_write_them_are_taken_and_kept():
    """Half of them; test_sampled and the soak have the others."""
    found = count([*WRITTEN, *EVERYDAY.values()][::2], 1)
    assert len(WRITTEN) >= 150
    assert found["refused"] <= UNTAKEN * found.total() and found["exact"] > found["relaxed"], found


def test_schemas_composed_of_every_draft_are_kept():
    found = count(generate(60), 2)
    assert found["exact"] > found.total() / 3, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_schemas_of_every_draft_are_kept():
    found = count([*generate(4000), *WRITTEN, *EVERYDAY.values()], 8)
    assert found["exact"] >= 1000, found
