"""Holds the grammars of JSON Schemas against a suite of instances in the format of the
JSON-Schema-Test-Suite.

Usage: python scripts/check_schema_suite.py FOLDER [--draft NAME]

FOLDER holds a folder for each draft, as the suite's `tests` does; a copy of the suite is in the source
distribution of the package jsonschema. Each schema without `$schema` is given the one of its folder. Of
schemas that are taken
with nothing relaxed, each valid instance must be accepted, written as this server writes JSON, and each
invalid one
refused.
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
"""Names that are tried in every order."""

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

ASSERTED = frozenset({"format.json"})
"""Files that say that formats assert nothing: here those that are known do."""


def find_cases(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The suite's cases, each after its file."""
    for path in sorted(folder.glob("*.json")):
        if path.name not in ASSERTED:
            for case in json.loads(path.read_bytes()):
                yield path.name, case


def accepts(grammar: Grammar, vocabulary: CompilerVocabulary, text: str) -> bool:
    """Whether a grammar takes a text to its end."""
    matcher = Matcher(grammar, vocabulary)
    try:
        matcher.consume(list(text.encode()))
    except EngineError:
        return False
    return matcher.is_complete


def orders(schema: object, value: object) -> Iterator[object]:
    """The value with its names in orders that a grammar may want: the schema's, and of few names any."""
    yield _ordered(value, [*_declared(schema)])
    if isinstance(value, dict) and len(value) <= MAX_PERMUTED:
        yield from ({name: value[name] for name in names} for names in permutations(value))
    else:
        yield value


def _declared(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        properties, required = schema.get("properties"), schema.get("required")
        yield from properties if isinstance(properties, dict) else ()
        yield from required if isinstance(required, list) else ()
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _declared(each)


def _ordered(value: object, names: list[str]) -> object:
    if isinstance(value, list):
        return [_ordered(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    last = len(names)
    keys = sorted(value, key=lambda name: names.index(name) if name in names else last)
    return {key: _ordered(value[key], names) for key in keys}


def spell(value: object) -> str:
    """JSON as this server's grammars write it; integers that are written as fractions have another
    spelling."""
    return json.dumps(_whole(value), ensure_ascii=False)


def _whole(value: object) -> object:
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value == value // 1 and abs(value) < 1e15 else value


def check(
    cases: Iterable[tuple[str, Mapping[str, Any]]], uri: str | None, vocabulary: CompilerVocabulary
) -> tuple[Counter[str], list[str]]:
    """What became of one draft's cases, and the instances that were taken or refused wrongly."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for file, case in cases:
        schema = case["schema"]
        if uri is not None and isinstance(schema, dict) and "$schema" not in schema:
            schema = {"$schema": uri} | schema
        try:
            made = normalize_schema(schema, "schema")
            grammar: Grammar | None = None
            if not made.relaxations:
                source = json.dumps(schema)
                grammar = check_constraint(Constraint(ConstraintKind.JSON_SCHEMA, source), vocabulary)
        except RequestError as refusal:
            counts["refused"] += 1
            if any(each["valid"] for each in case["tests"]):
                counts["refused though satisfiable"] += 1
                wrong.append(f"  {file}: {case['description']}: refused: {refusal.message[:120]}")
            continue
        counts["relaxed" if grammar is None else "exact"] += 1
        if grammar is None:
            continue
        for each in case["tests"]:
            texts = map(spell, orders(schema, each["data"]))
            taken = any(accepts(grammar, vocabulary, text) for text in texts)
            counts["instances"] += 1
            if taken != each["valid"]:
                counts["valid refused" if each["valid"] else "invalid taken"] += 1
                verb = "taken" if taken else "refused"
                what = f"{case['description']}: {each['description']}"
                wrong.append(f"  {file}: {what}: {verb} {spell(each['data'])[:80]}")
    return counts, wrong


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
