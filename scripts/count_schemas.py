"""Counts the JSON Schemas of some folders that a server accepts as a response format, and tells why it
refuses the others.

Usage: python scripts/count_schemas.py FOLDER ... [--examples N] [--json FILE]

Each *.json file that looks like a schema goes through the decoder of POST /v1/chat/completions and through
the process that checks constraints, as in the server. A schema is "exact" if the server would name nothing in
x-antiphon-relaxed.
"""

import argparse
import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.constraints.checker import Checker, CheckLimits
from antiphon.constraints.matching import TokenTable
from antiphon.dialects.openai.dialect import decode_chat
from antiphon.errors import RequestError

SCHEMA_KEYS = frozenset(
    "$schema type properties items anyOf oneOf allOf $ref enum const definitions $defs".split()
)
"""Keys that identify a schema: a file with one of them counts as a schema."""

END = 256
VOCABULARY = TokenTable((*(bytes([byte]) for byte in range(256)), b""), (END,))
"""One token for each byte. The accepted schemas do not depend on the vocabulary, except for time limits."""

VARIABLE_PARTS = re.compile(r" at #.*? of response_format\S*|'.*?'|[0-9]+")
"""The parts of a refusal that differ between schemas."""


@dataclass
class SchemaCounts:
    """The results for the schemas of one folder."""

    exact: int = 0
    relaxed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def total(self) -> int:
        return self.exact + self.relaxed + self.reasons.total()


def find_schemas(folder: Path) -> Iterator[tuple[Path, object]]:
    """Yields the files that look like schemas, in the order of their names."""
    for path in sorted(folder.rglob("*.json")):
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, OSError):
            continue
        if isinstance(value, dict) and value.keys() & SCHEMA_KEYS:
            yield path, value


def build_body(schema: object) -> bytes:
    """Builds a request whose answer must match the schema."""
    response_format = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    request = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "response_format": response_format,
    }
    return json.dumps(request).encode()


async def count_schemas(folder: Path, checker: Checker) -> SchemaCounts:
    """Checks the schemas of a folder."""
    counts = SchemaCounts()
    for path, schema in find_schemas(folder):
        try:
            decoded = decode_chat(build_body(schema))
            if decoded.request.output.constraint is not None:
                await checker.check(decoded.request.output.constraint)
        except RequestError as refusal:
            reason = VARIABLE_PARTS.sub("_", refusal.message)[:160]
            counts.reasons[reason] += 1
            counts.examples[reason].append(f"{path}: {refusal.message[:200]}")
            continue
        counts.names.update({name.rsplit(" ", 1)[-1] for name in decoded.relaxed})
        if decoded.relaxed:
            counts.relaxed += 1
        else:
            counts.exact += 1
    return counts


def report(name: str, counts: SchemaCounts, examples: int) -> None:
    """Prints the results of one folder."""
    if not counts.total:
        print(f"{name}: no schemas")
        return
    accepted = counts.exact + counts.relaxed
    print(
        f"{name}: {accepted} of {counts.total} taken ({accepted / counts.total:.1%}), "
        f"{counts.exact} of them exactly ({counts.exact / counts.total:.1%})"
    )
    for reason, occurrences in counts.reasons.most_common(25):
        print(f"  refused {occurrences:5} {reason}")
        for example in counts.examples[reason][:examples]:
            print(f"          {example}")
    if counts.names:
        print(
            "  relaxed",
            ", ".join(f"{word} {occurrences}" for word, occurrences in counts.names.most_common(30)),
        )


async def main() -> None:
    """Counts each folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--examples", type=int, default=0, help="the number of refused files to print for each reason"
    )
    options = parser.parse_args()
    checker = Checker(VOCABULARY, CheckLimits(patience=300.0))
    try:
        for folder in options.folders:
            report(folder.name, await count_schemas(folder, checker), options.examples)
    finally:
        await checker.aclose()


if __name__ == "__main__":
    asyncio.run(main())
