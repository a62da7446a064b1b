"""Exercises a test can check: copying, spelling, counting, short JSON. Questions and exact answers."""

import json
import random

from models.cantor.corpus.grammar import load_words

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


def invented(rng: random.Random) -> str:
    """A word that is no word, so that copying is learned rather than words."""
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
    return word.capitalize() if rng.random() < 0.2 else word


def some_word(rng: random.Random) -> str:
    """A common word, a name, a number or an invented word."""
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(COMMON)
    if roll < 0.65:
        return rng.choice(WORDS[rng.choice(("name", "city", "family", "day", "month", "country"))])
    if roll < 0.75:
        return str(rng.randint(0, 10 ** rng.randint(1, 4)))
    return invented(rng)


def phrase(rng: random.Random, low: int = 1, high: int = 7) -> str:
    """A short run of words, with a capital or a mark now and then."""
    text = " ".join(some_word(rng) for _ in range(rng.randint(low, high)))
    if rng.random() < 0.3:
        text = text[0].upper() + text[1:]
    return text + rng.choice(("", "", "", ".", "!", "?"))


def sentence(rng: random.Random) -> str:
    """A plain sentence of common words."""
    adjective, noun = rng.choice(WORDS["adjective"]), rng.choice(WORDS["animal"] + WORDS["job"])
    place, verb = rng.choice(WORDS["place"]), rng.choice(WORDS["verb"])
    return rng.choice(
        (
            f"The {adjective} {noun} likes to {verb} in the {place}.",
            f"My {noun} is {adjective}.",
            f"We {verb} in the {adjective} {place}.",
            f"I saw a {noun} near the {place} today.",
            f"{rng.choice(WORDS['name'])} has a {adjective} {rng.choice(WORDS['object'])}.",
        )
    )


def ask(rng: random.Random) -> tuple[str, str]:
    """One exercise and its only right answer."""
    return rng.choice(
        (
            _copy,
            _copy,
            _copy,
            _copy,
            _spell,
            _spell,
            _count,
            _count,
            _json,
            _json,
            _json,
            _letters,
            _case,
            _sort,
            _pick,
            _twice,
            _join,
        )
    )(rng)


def _copy(rng: random.Random) -> tuple[str, str]:
    text = sentence(rng) if rng.random() < 0.35 else phrase(rng)
    lead = rng.choice(
        (
            "Repeat after me: ",
            "Say: ",
            "Copy this: ",
            "Repeat: ",
            "Repeat this: ",
            "Please repeat: ",
            "Write exactly: ",
            "Echo: ",
            "Say exactly this: ",
            "Copy the following text: ",
            "Answer with: ",
            "Repeat the following: ",
            "Just say: ",
            "Repeat these words: ",
            "Reply with exactly: ",
            "Please say: ",
            "Write this down: ",
            "Type: ",
            "Output only: ",
            "Copy this sentence: ",
            "Please copy this text: ",
            "Repeat the words ",
            "Say the word ",
            "Echo this back to me: ",
            "Return this text unchanged: ",
            "Parrot this: ",
            "Please write: ",
        )
    )
    roll = rng.random()
    if roll < 0.25:
        return f'{lead}"{text}"' + rng.choice(("", ".")), text
    if roll < 0.32:
        return f"{lead}'{text}'", text
    if roll < 0.40:
        return f"{lead.rstrip(': ')}:\n{text}", text
    return lead + text, text


def _spell(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(COMMON + WORDS["name"]) if rng.random() < 0.75 else invented(rng)
    word = word.split()[0]
    quoted = rng.choice((word, word, f'"{word}"', f"'{word}'"))
    question = rng.choice(
        (
            f"Spell {quoted}.",
            f"Spell the word {quoted}.",
            f"How do you spell {quoted}?",
            f"Please spell {quoted}.",
            f"Can you spell {quoted}?",
            f"Write {quoted} letter by letter.",
            f"How is {quoted} spelled?",
            f"Spell out {quoted}.",
            f"Spell {quoted} for me.",
        )
    )
    return question, "-".join(word.lower())


def _count(rng: random.Random) -> tuple[str, str]:
    low = rng.choice((1, 1, 1, rng.randint(0, 30)))
    high = low + rng.randint(2, 9)
    up = rng.random() < 0.75
    numbers = list(range(low, high + 1)) if up else list(range(high, low - 1, -1))
    first, last = numbers[0], numbers[-1]
    lead = rng.choice(
        ("Count from", "Please count from", "Can you count from", "Write the numbers from", "Count")
    )
    question = f"{lead} {first} to {last}" + rng.choice((".", "", "!", " please."))
    if up and low == 1 and rng.random() < 0.4:
        question = rng.choice((f"Count to {last}.", f"Can you count to {last}?", f"Count up to {last}."))
    return question, ", ".join(map(str, numbers)) + "."


FIELDS = (
    "name",
    "age",
    "city",
    "colour",
    "price",
    "title",
    "size",
    "id",
    "email",
    "country",
    "status",
    "count",
    "animal",
    "fruit",
    "year",
    "day",
    "level",
    "score",
    "user",
    "kind",
    "code",
    "word",
    "food",
    "job",
)


def _value(field: str, rng: random.Random) -> str | int | bool:
    if field in ("age", "price", "size", "id", "count", "year", "level", "score"):
        return rng.randint(0, 10 ** rng.randint(1, 4))
    if field in WORDS:
        return rng.choice(WORDS[field])
    if field == "email":
        return f"{rng.choice(WORDS['name']).lower()}@example.com"
    return some_word(rng)


def _json(rng: random.Random) -> tuple[str, str]:
    fields = rng.sample(FIELDS, rng.choice((1, 1, 2, 2, 2, 3)))
    if rng.random() < 0.25:
        fields[0] = invented(rng).lower()
    pairs = {field: _value(field, rng) for field in fields}
    spoken = [
        rng.choice(
            (
                f"{field} {value}",
                f"{field} {value}",
                f"{field} = {value}",
                f"{field}: {value}",
                f"the {field} {value}",
                f'"{field}" set to "{value}"',
            )
        )
        for field, value in pairs.items()
    ]
    listed = " and ".join([", ".join(spoken[:-1]), spoken[-1]] if len(spoken) > 1 else spoken)
    lead = rng.choice(
        (
            "Give me JSON with ",
            "Write a JSON object with ",
            "Make JSON from ",
            "Return JSON with ",
            "Answer in JSON: ",
            "As JSON: ",
            "Write JSON with ",
            "I need a JSON object with ",
            "Output a JSON object with ",
            "Reply only with JSON: ",
            "Turn this into JSON: ",
            "Create a JSON object with ",
            "Produce JSON for ",
        )
    )
    if rng.random() < 0.12:
        words = [some_word(rng) for _ in range(rng.randint(2, 4))]
        return f"Write a JSON array with the words {', '.join(words)}.", json.dumps(words)
    return lead + listed + rng.choice((".", "")), json.dumps(pairs)


def _letters(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(COMMON).split()[0]
    if rng.random() < 0.5:
        return rng.choice(
            (
                f"What is the first letter of {word}?",
                f"With which letter does {word} begin?",
                f"Which letter does {word} start with?",
            )
        ), f"The first letter of {word} is {word[0]}."
    return rng.choice((f"What is the last letter of {word}?", f"With which letter does {word} end?")), (
        f"The last letter of {word} is {word[-1]}."
    )


def _case(rng: random.Random) -> tuple[str, str]:
    text = " ".join(rng.choice(COMMON) for _ in range(rng.randint(1, 4)))
    if rng.random() < 0.7:
        return rng.choice(
            (
                f"Write {text} in capital letters.",
                f"Put this in upper case: {text}",
                f"Make this uppercase: {text}",
                f"Shout: {text}",
            )
        ), text.upper()
    return rng.choice(
        (f"Write {text.upper()} in small letters.", f"Make this lowercase: {text.upper()}")
    ), text


def _sort(rng: random.Random) -> tuple[str, str]:
    numbers = rng.sample(range(20), rng.randint(2, 4))
    shown = ", ".join(map(str, numbers))
    lead = rng.choice(("Sort these numbers: ", "Put these numbers in order: ", "Sort: "))
    return lead + shown, ", ".join(map(str, sorted(numbers))) + "."


def _pick(rng: random.Random) -> tuple[str, str]:
    words = [some_word(rng) for _ in range(rng.randint(3, 5))]
    at = rng.choice((0, 1, 2, len(words) - 1))
    name = ("first", "second", "third")[at] if at < 3 and rng.random() < 0.8 else None
    if name is None:
        at, name = len(words) - 1, "last"
    return rng.choice(
        (
            f"What is the {name} word of: {' '.join(words)}?",
            f"Take the {name} word: {', '.join(words)}",
            f"Which word comes {name} in this list: {', '.join(words)}?",
        )
    ), words[at]


def _twice(rng: random.Random) -> tuple[str, str]:
    word, many = some_word(rng), rng.randint(2, 4)
    number = WORDS["number"][many]
    times = rng.choice(("twice", "two times")) if many == 2 else f"{number} times"
    return rng.choice(
        (f"Say {word} {times}.", f"Write {word} {times}.", f"Repeat the word {word} {times}.")
    ), (" ".join([word] * many))


def _join(rng: random.Random) -> tuple[str, str]:
    words = [rng.choice(COMMON) for _ in range(rng.randint(2, 4))]
    return f"Join these words with {rng.choice(('a comma', 'commas'))}: {' '.join(words)}", ", ".join(words)
