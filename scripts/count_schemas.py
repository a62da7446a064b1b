"""Counts how many JSON Schemas of some folders a server takes as a response format, and says why it refuses
the others.

Usage: python scripts/count_schemas.py FOLDER ... [--examples N] [--json FILE]

Each *.json file that looks like a schema is sent through the decoder of POST /v1/chat/completions and through
the process that checks constraints, as the server does it. "exact" is taken with nothing named in
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

SIGNS = frozenset("$schema type properties items anyOf oneOf allOf $ref enum const definitions $defs".split())
"""Keys of which a schema has at least one."""

END = 256
VOCABULARY = TokenTable((*(bytes([byte]) for byte in range(256)), b""), (END,))
"""A token for each byte: what is taken does not depend on the model, but for time."""

PLACE = re.compile(r" at #.*? of response_format\S*|'.*?'|[0-9]+")
"""The parts of a refusal that differ from schema to schema."""


@dataclass
class Tally:
    """What became of the schemas of one folder."""

    exact: int = 0
    relaxed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def total(self) -> int:
        return self.exact + self.relaxed + self.reasons.total()


def find_schemas(folder: Path) -> Iterator[tuple[Path, object]]:
    """The files that look like schemas, in the order of their names."""
    for path in sorted(folder.rglob("*.json")):
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, OSError):
            continue
        if isinstance(value, dict) and value.keys() & SIGNS:
            yield path, value


def build_body(schema: object) -> bytes:
    """A request whose answer is held to the schema."""
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": form}
    return json.dumps(asked).encode()


async def count(folder: Path, checker: Checker) -> Tally:
    """What becomes of a folder's schemas."""
    tally = Tally()
    for path, schema in find_schemas(folder):
        try:
            call = decode_chat(build_body(schema))
            if call.request.output.constraint is not None:
                await checker.check(call.request.output.constraint)
        except RequestError as refusal:
            reason = PLACE.sub("_", refusal.message)[:160]
            tally.reasons[reason] += 1
            tally.examples[reason].append(f"{path}: {refusal.message[:200]}")
            continue
        tally.names.update({name.rsplit(" ", 1)[-1] for name in call.relaxed})
        if call.relaxed:
            tally.relaxed += 1
        else:
            tally.exact += 1
    return tally


def report(name: str, tally: Tally, examples: int) -> None:
    """Prints one folder's figures."""
    if not tally.total:
        print(f"{name}: no schemas")
        return
    taken = tally.exact + tally.relaxed
    print(
        f"{name}: {taken} of {tally.total} taken ({taken / tally.total:.1%}), "
        f"{tally.exact} of them exactly ({tally.exact / tally.total:.1%})"
    )
    for reason, times in tally.reasons.most_common(25):
        print(f"  refused {times:5} {reason}")
        for each in tally.examples[reason][:examples]:
            print(f"          {each}")
    if tally.names:
        print("  relaxed", ", ".join(f"{word} {times}" for word, times in tally.names.most_common(30)))


async def main() -> None:
    """Counts each folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--examples", type=int, default=0, help="refused files that are shown for each reason"
    )
    options = parser.parse_args()
    checker = Checker(VOCABULARY, CheckLimits(patience=300.0))
    try:
        for folder in options.folders:
            report(folder.name, await count(folder, checker), options.examples)
    finally:
        await checker.aclose()


if __name__ == "__main__":
    asyncio.run(main())
