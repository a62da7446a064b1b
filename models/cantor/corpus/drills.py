"""Drills: plain texts whose end is all given by their beginning.

A small model learns to copy late or never from dialogues alone; a run of words that comes again, a table that
is asked for, words and then their letters teach it within a few hundred steps. The beginning is drawn at
random, so only the end is to be learned.
"""

import random

from models.cantor.corpus.material import COMMON, invented, some_word

Drill = tuple[str, str]


def drill(rng: random.Random) -> Drill:
    """The beginning and the end of one drill of any kind."""
    return rng.choice(
        (_twice, _twice, _twice, _quoted, _quoted, _pairs, _pairs, _spelled, _counted, _shouted)
    )(rng)


def _words(rng: random.Random, low: int, high: int) -> list[str]:
    return [some_word(rng) for _ in range(rng.randint(low, high))]


def _twice(rng: random.Random) -> Drill:
    """A run of words, again and again."""
    run = " ".join(_words(rng, 3, 14))
    joint = rng.choice((". ", ": ", " ", "\n"))
    return run, joint.join(["", *[run] * rng.choice((1, 1, 2))])


def _quoted(rng: random.Random) -> Drill:
    """Words, then the same words in quotation marks, as JSON has them."""
    words = _words(rng, 3, 9)
    return " ".join(words) + ":", " " + ", ".join(f'"{word}"' for word in words)


def _pairs(rng: random.Random) -> Drill:
    """A table of keys and values, then what some keys have."""
    keys = rng.sample(COMMON, rng.randint(2, 5))
    joint = rng.choice((" is ", ": ", " = ", " has "))
    rows = [f"{key}{joint}{some_word(rng)}" for key in keys]
    asked = rng.sample(rows, rng.randint(2, len(rows)))
    return ", ".join(rows) + ".", f" {'. '.join(asked)}."


def _spelled(rng: random.Random) -> Drill:
    """Words, then their letters."""
    words = [
        rng.choice(COMMON).split()[0] if rng.random() < 0.7 else invented(rng)
        for _ in range(rng.randint(1, 4))
    ]
    return " ".join(words) + ":", " " + " ".join("-".join(word.lower()) for word in words)


def _counted(rng: random.Random) -> Drill:
    """A run of numbers, up or down, after its ends."""
    low, size = rng.randint(0, 40), rng.randint(4, 12)
    numbers = list(range(low, low + size))
    if rng.random() < 0.3:
        numbers.reverse()
    return f"{numbers[0]} to {numbers[-1]}:", f" {', '.join(map(str, numbers))}."


def _shouted(rng: random.Random) -> Drill:
    """Words, then the same words in capital letters."""
    words = [rng.choice(COMMON) for _ in range(rng.randint(2, 6))]
    return " ".join(words) + ":", f" {' '.join(words).upper()}"
