"""What exercises, tool calls and dialogues are made of: common and invented words, phrases, sentences."""

import random

from models.cantor.corpus.grammar import HERE, Choice, draw, lines_of, load_words, parse

WORDS = load_words()
COMMON = tuple(
    sorted(
        {
            word
            for kind in (
                "animal",
                "colour",
                "fruit",
                "food",
                "object",
                "place",
                "nature",
                "adjective",
                "verb",
                "abstract",
                "vegetable",
                "drink",
                "job",
                "more",
            )
            for word in WORDS[kind]
        }
    )
)
SYLLABLES = (
    "ba",
    "be",
    "bo",
    "ca",
    "co",
    "da",
    "de",
    "do",
    "fa",
    "fi",
    "ga",
    "go",
    "ha",
    "ka",
    "ki",
    "la",
    "le",
    "li",
    "lo",
    "ma",
    "mi",
    "mo",
    "na",
    "ne",
    "no",
    "pa",
    "pi",
    "po",
    "ra",
    "re",
    "ri",
    "ro",
    "sa",
    "se",
    "so",
    "ta",
    "te",
    "ti",
    "to",
    "va",
    "ve",
    "vi",
    "wa",
    "wi",
    "za",
    "zo",
    "an",
    "en",
    "in",
    "on",
    "ar",
    "er",
    "or",
    "st",
    "tr",
    "gl",
    "br",
    "cr",
    "nd",
    "ng",
    "x",
    "q",
    "sh",
    "th",
    "ch",
    "u",
    "y",
    "m",
    "n",
    "k",
    "t",
    "l",
)


SLOTS = {name: Choice(tuple((word,) for word in words)) for name, words in WORDS.items()}
SENTENCES = tuple(parse(line) for line in lines_of(HERE / "sentences.txt"))
HALVES = tuple(word for word in COMMON if len(word) >= 5 and word.isalpha())


def invented(rng: random.Random) -> str:
    """A word that is no word, so that copying is learned rather than words."""
    if rng.random() < 0.4:
        first, second = rng.choice(HALVES), rng.choice(HALVES)
        word = first[: rng.randint(2, 4)] + second[-rng.randint(2, 4) :]
    else:
        word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
    return word.capitalize() if rng.random() < 0.2 else word


def some_word(rng: random.Random) -> str:
    """A common word, a name, a number or an invented word."""
    roll = rng.random()
    if roll < 0.55:
        return rng.choice(COMMON)
    if roll < 0.68:
        return rng.choice(WORDS[rng.choice(("name", "city", "family", "day", "month", "country"))])
    if roll < 0.76:
        return str(rng.randint(0, 10 ** rng.randint(1, 4)))
    return invented(rng)


def some_words(rng: random.Random, low: int, high: int) -> list[str]:
    """At most `high` different words."""
    return list(dict.fromkeys(some_word(rng) for _ in range(rng.randint(low, high))))


def plain_word(rng: random.Random) -> str:
    """One word in small letters, a common one or an invented one."""
    word = rng.choice(COMMON) if rng.random() < 0.75 else invented(rng)
    return word.split()[0].lower()


def phrase(rng: random.Random, low: int = 1, high: int = 7) -> str:
    """A short run of words, with a capital or a mark now and then."""
    text = " ".join(some_word(rng) for _ in range(rng.randint(low, high)))
    if rng.random() < 0.3:
        text = text[0].upper() + text[1:]
    return text + rng.choice(("", "", "", ".", "!", "?"))


def sentence(rng: random.Random) -> str:
    """A plain sentence of common words."""
    text = draw(rng.choice(SENTENCES), rng, SLOTS)
    return text[0].upper() + text[1:]
