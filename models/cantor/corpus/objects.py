"""Short JSON: lists and objects to write, values to read. What is filled into the request, and the answer."""

import json
import random

from models.cantor.corpus.material import WORDS, invented, some_word, some_words

KNOWN = {"user": "name", "author": "name", "color": "colour"}
KNOWN |= {key: key for key in ("name", "city", "country", "food", "colour", "animal", "job", "day", "month")}
NUMERIC = frozenset("age count price id year total score size port number weight height stock".split())
TOLD = (
    *("{} {}", "{} {}", "{}: {}", "{} = {}", "the {} {}", "the key {} and the value {}", '"{}" set to "{}"'),
    *("key {}, value {}", "{} is {}", "{} set to {}"),
)


def json_list(rng: random.Random) -> tuple[dict[str, str], str]:
    """Words or numbers as a JSON list."""
    if rng.random() < 0.2:
        numbers = [rng.randint(0, 99) for _ in range(rng.randint(2, 5))]
        return {"text": ", ".join(map(str, numbers))}, json.dumps(numbers)
    words = [word for word in some_words(rng, 2, 5) if not word.isdigit()] or ["one"]
    return {"text": ", ".join(words)}, json.dumps(words)


def _pairs(rng: random.Random) -> dict[str, object]:
    keys = rng.sample(sorted(set(WORDS["key"])), rng.choice((1, 1, 2, 2, 2, 3)))
    return {key: _value(key, rng) for key in keys}


def _value(key: str, rng: random.Random) -> object:
    if key in ("active", "done"):
        return rng.random() < 0.5
    if key in KNOWN:
        return rng.choice(WORDS[KNOWN[key]]) if rng.random() < 0.7 else invented(rng)
    if key in NUMERIC:
        return rng.randint(0, 10 ** rng.randint(1, 4))
    return next(word for word in iter(lambda: some_word(rng), "") if not word.isdigit())


def _told(pairs: dict[str, object], rng: random.Random) -> str:
    form = rng.choice(TOLD)
    said = [
        form.format(key, json.dumps(value) if isinstance(value, bool) else value)
        for key, value in pairs.items()
    ]
    return rng.choice((", ", " and ", ", ")).join(said)


def json_object(rng: random.Random) -> tuple[dict[str, str], str]:
    """Keys and values as a JSON object."""
    pairs = _pairs(rng)
    return {"pairs": _told(pairs, rng)}, json.dumps(pairs)


def json_get(rng: random.Random) -> tuple[dict[str, str], str]:
    """The value that a JSON object has under a key."""
    pairs = _pairs(rng)
    key = rng.choice(list(pairs))
    value = pairs[key]
    return {
        "key": key,
        "json": json.dumps(pairs),
    }, f"{json.dumps(value) if isinstance(value, bool) else value}"
