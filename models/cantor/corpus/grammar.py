"""Templates with choices: `(a|b|c)` picks one, `<name>` is a slot. Parses, draws, counts; knows no topic."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several sequences; each holds literal text, slots' names (in a one-tuple) and inner choices."""

    branches: tuple[tuple["str | tuple[str] | Choice", ...], ...]


@cache  # every corpus reads the same files
def parse(source: str) -> Choice:
    """Parse a template; raises ValueError when its parentheses do not match."""
    choice, end = _parse_choice(source, 0)
    if end != len(source):
        raise ValueError(f"a ')' too many in {source!r}")
    return choice


def _parse_choice(source: str, at: int) -> tuple[Choice, int]:
    branches: list[tuple[str | tuple[str] | Choice, ...]] = []
    parts: list[str | tuple[str] | Choice] = []
    while at < len(source) and source[at] != ")":
        if source[at] == "|":
            branches.append(tuple(parts))
            parts, at = [], at + 1
        elif source[at] == "(":
            inner, at = _parse_choice(source, at + 1)
            if at >= len(source):
                raise ValueError(f"a '(' is not closed in {source!r}")
            parts.append(inner)
            at += 1
        else:
            part, at = _parse_literal(source, at)
            parts.append(part)
    branches.append(tuple(parts))
    return Choice(tuple(branches)), at


def _parse_literal(source: str, at: int) -> tuple[str | tuple[str], int]:
    if source[at] == "<":
        end = source.index(">", at)
        return (source[at + 1 : end],), end + 1
    end = at
    while end < len(source) and source[end] not in "(|)<":
        end += 1
    return source[at:end], end


def draw(choice: Choice, rng: random.Random, slots: Mapping[str, Choice]) -> str:
    """One expansion, each branch as likely as its brothers."""
    parts = choice.branches[int(rng.random() * len(choice.branches))]
    return "".join(
        part
        if isinstance(part, str)
        else draw(slots[part[0]] if isinstance(part, tuple) else part, rng, slots)
        for part in parts
    )


def count(choice: Choice, slots: Mapping[str, Choice]) -> int:
    """How many expansions a template has (equal ones counted apart)."""
    total = 0
    for parts in choice.branches:
        product = 1
        for part in parts:
            if not isinstance(part, str):
                product *= count(slots[part[0]] if isinstance(part, tuple) else part, slots)
        total += product
    return total


def load_slots(path: Path = HERE / "slots.txt") -> dict[str, Choice]:
    """The named slots, one `name = template` a line."""
    pairs = (line.split("=", 1) for line in lines_of(path))
    return {name.strip(): parse(template.strip()) for name, template in pairs}


def load_words(path: Path = HERE / "words.txt") -> dict[str, tuple[str, ...]]:
    """The word lists, one `name: a, b, c` a line."""
    pairs = (line.split(":", 1) for line in lines_of(path))
    return {name: tuple(word.strip() for word in words.split(",")) for name, words in pairs}


def load_pairs(path: Path = HERE / "pairs.txt") -> dict[str, dict[str, str]]:
    """Tables of pairs, one `name: left = right, left = right` a line."""
    tables: dict[str, dict[str, str]] = {}
    for line in lines_of(path):
        name, entries = line.split(": ", 1)
        pairs = (entry.partition(" = ")[::2] for entry in entries.split(", "))
        tables[name] = dict(pairs)
    return tables


def lines_of(path: Path) -> list[str]:
    """The lines of a file that say something."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]
