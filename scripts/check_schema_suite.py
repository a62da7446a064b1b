"""Checks the grammars of JSON Schemas with test cases in the format of the JSON-Schema-Test-Suite.

Usage: python scripts/check_schema_suite.py FOLDER [--draft NAME]

FOLDER has a folder for each draft, like the suite's `tests`. The source distribution of the package
jsonschema contains a copy of the suite. A schema without `$schema` gets the one of its folder. For each
schema that is accepted without relaxations, the grammar must accept each valid instance, in the notation that
this server writes, and refuse each invalid one.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.json_schema.lowering import normalize_schema
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import EngineError, RequestError

MAX_PERMUTED = 4
"""The most property names that are tried in every order."""

END = 256
TOKENS = TokenTable((*(bytes([byte]) for byte in range(256)), b""), (END,))

DRAFTS = {
    "draft3": "http://json-schema.org/draft-03/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}

SKIPPED_FILES = frozenset({"format.json"})
"""Files that expect formats to assert nothing. This server does enforce the formats that it knows."""


def find_cases(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the suite's cases, each with the name of its file."""
    for path in sorted(folder.glob("*.json")):
        if path.name not in SKIPPED_FILES:
            for case in json.loads(path.read_bytes()):
                yield path.name, case


def accepts(matcher: Matcher, text: str) -> bool:
    """Whether a grammar accepts a complete text, which the matcher consumes."""
    try:
        matcher.consume(list(text.encode()))
    except EngineError:
        return False
    return matcher.is_complete


def list_orderings(schema: object, value: object) -> Iterator[object]:
    """Yields the value with its names in orders that a grammar may require: that of the schema, and all
    orders if there are few names."""
    yield _sort_names(value, [*_list_declared_names(schema)])
    if isinstance(value, dict) and len(value) <= MAX_PERMUTED:
        yield from ({name: value[name] for name in names} for names in permutations(value))
    else:
        yield value


def _list_declared_names(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        properties, required = schema.get("properties"), schema.get("required")
        yield from properties if isinstance(properties, dict) else ()
        yield from required if isinstance(required, list) else ()
    for subschema in (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    ):
        yield from _list_declared_names(subschema)


def _sort_names(value: object, names: list[str]) -> object:
    if isinstance(value, list):
        return [_sort_names(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    last_place = len(names)
    keys = sorted(value, key=lambda name: names.index(name) if name in names else last_place)
    return {key: _sort_names(value[key], names) for key in keys}


def encode_value(value: object) -> str:
    """Encodes a value as this server's grammars write JSON: whole numbers have no fraction."""
    return json.dumps(_convert_whole_numbers(value), ensure_ascii=False)


def _convert_whole_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _convert_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_convert_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value == value // 1 and abs(value) < 1e15 else value


def check(
    cases: Iterable[tuple[str, Mapping[str, Any]]], uri: str | None, vocabulary: CompilerVocabulary
) -> tuple[Counter[str], list[str]]:
    """Checks the cases of one draft. Returns the counts, and the instances with a wrong result."""
    counts: Counter[str] = Counter()
    wrong_results: list[str] = []
    for file, case in cases:
        schema = case["schema"]
        if uri is not None and isinstance(schema, dict) and "$schema" not in schema:
            schema = {"$schema": uri} | schema
        try:
            normalized = normalize_schema(schema, "schema")
            grammar: Grammar | None = None
            if not normalized.relaxations:
                source = json.dumps(schema)
                grammar = check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, source), vocabulary)
        except RequestError as refusal:
            counts["refused"] += 1
            if any(test["valid"] for test in case["tests"]):
                counts["refused though satisfiable"] += 1
                wrong_results.append(f"  {file}: {case['description']}: refused: {refusal.message[:120]}")
            continue
        counts["relaxed" if grammar is None else "exact"] += 1
        if grammar is None:
            continue
        start = Matcher(grammar, vocabulary)
        for test in case["tests"]:
            texts = map(encode_value, list_orderings(schema, test["data"]))
            is_accepted = any(accepts(start.copy(), text) for text in texts)
            counts["instances"] += 1
            if is_accepted != test["valid"]:
                counts["valid refused" if test["valid"] else "invalid taken"] += 1
                verb = "taken" if is_accepted else "refused"
                label = f"{case['description']}: {test['description']}"
                wrong_results.append(f"  {file}: {label}: {verb} {encode_value(test['data'])[:80]}")
    return counts, wrong_results


def main() -> None:
    """Checks each draft's folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft", choices=DRAFTS)
    options = parser.parse_args()
    vocabulary = CompilerVocabulary(TOKENS)
    for name, uri in DRAFTS.items():
        if options.draft in (None, name) and (options.folder / name).is_dir():
            counts, wrong = check(find_cases(options.folder / name), uri, vocabulary)
            print(name, dict(counts))
            print("\n".join(wrong))


if __name__ == "__main__":
    main()
