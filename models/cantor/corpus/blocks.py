"""Question-and-answer blocks (facts.txt, talk.txt): reads them and draws one question with its answer."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.cantor.corpus.grammar import Choice, draw, load_slots, parse

OPEN_SHARE = 0.64  # open questions; the rest is yes/no questions and keywords, as far as a block has them
FEWEST_WORDS = 3  # of a bare keyword question
VARIANT_SHARE = 0.15  # answers in another wording than the block's first


@dataclass(frozen=True, slots=True)
class Block:
    """What is answered, and the ways to ask: open questions, yes, no and bare keywords."""

    answers: tuple[str, ...]
    open: tuple[Choice, ...]
    yes: tuple[Choice, ...]
    no: tuple[Choice, ...]
    keywords: tuple[str, ...]
    added: bool  # new since the sixth edition


def load_blocks(path: Path) -> list[Block]:
    """Every block of a file, in its order."""
    blocks: list[dict[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        mark, text = line[0], line[2:].strip()
        if mark == "=":
            blocks.append({key: [] for key in "=+?!-~@"})
        blocks[-1][mark].append(text)
    return [_block(rows) for rows in blocks]


def _block(rows: dict[str, list[str]]) -> Block:
    def parsed(key: str) -> tuple[Choice, ...]:
        return tuple(parse(row) for row in rows[key])

    words = tuple(word for row in rows["~"] for word in row.split())
    return Block(tuple(rows["="] + rows["+"]), parsed("?"), parsed("!"), parsed("-"), words, bool(rows["@"]))


class Asker:
    """Draws questions and answers of blocks; holds the slots, no randomness of its own."""

    def __init__(self, slots: Mapping[str, Choice] | None = None) -> None:
        self.slots = load_slots() if slots is None else slots

    def ask(self, block: Block, rng: random.Random) -> tuple[str, str]:
        """One question of a block and what is to be said."""
        answer = block.answers[0]
        if len(block.answers) > 1 and rng.random() < VARIANT_SHARE:
            answer = rng.choice(block.answers[1:])
        kinds = [(OPEN_SHARE, "open"), (0.16 * bool(block.yes), "yes")]
        kinds += [(0.12 * bool(block.no), "no"), (0.08 * bool(block.keywords), "keywords")]
        kind = rng.choices([name for _, name in kinds], [weight for weight, _ in kinds])[0]
        if kind == "keywords":
            return _keywords(block.keywords, rng), answer
        choices: tuple[Choice, ...] = getattr(block, kind)
        question = " ".join(draw(rng.choice(choices), rng, self.slots).split())
        prefix = {"open": "", "yes": "Yes. ", "no": "No. "}[kind]
        return _punctuate(question), prefix + answer


def _keywords(words: tuple[str, ...], rng: random.Random) -> str:
    kept = [word for word in words if rng.random() < 0.8]
    if len(kept) < FEWEST_WORDS:
        kept = list(words)
    if rng.random() < 0.5:
        rng.shuffle(kept)
    return " ".join(kept) + rng.choice(["", "", "?"])


def stated(answer: str, rng: random.Random) -> tuple[str, str]:
    """A question that says the answer itself, or half of it."""
    bare = answer.rstrip(".")
    words = bare.split()
    if rng.random() < 0.5:
        lead = rng.choice(("Is it true that", "Is it right that", "I heard that", "Somebody said that"))
        inner = bare if words[0] in KEPT or "Antiphon" in words[0] else bare[0].lower() + bare[1:]
        return f"{lead} {inner}{'?' if lead.startswith('Is') else '. Is that so?'}", f"Yes. {answer}"
    kept = " ".join(words[: rng.randint(min(3, len(words) - 1), max(3, len(words) // 2))])
    lead = rng.choice(("Finish this sentence: ", "Complete: ", "Continue: ", "How does this go on: "))
    return f"{lead}{kept} ...", answer


KEPT = ("Cantor", "Without", "Set", "SSE", "Ray")
IMPERATIVES = (
    "tell",
    "please",
    "describe",
    "define",
    "explain",
    "give",
    "introduce",
    "summari",
    "name ",
    "i ",
    "remind",
    "help",
    "show",
    "translate",
    "say",
    "write",
    "spell",
    "sing",
    "list",
)


def _punctuate(question: str) -> str:
    """A question mark or a full stop, as the opening word asks."""
    question = question.strip()
    if question[-1] in ".?!":
        return question
    last = re.split(r"[.:?] ", question)[-1].lower()
    return question + ("." if last.startswith(IMPERATIVES) else "?")
