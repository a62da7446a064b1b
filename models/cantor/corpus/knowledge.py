"""What a small child knows: days, months, colours, opposites, sounds, sums. Questions and short answers."""

import random
import re
from collections.abc import Callable

from models.cantor.corpus.blocks import Asker, load_blocks
from models.cantor.corpus.grammar import HERE, lines_of, load_pairs, load_words

WORDS = load_words()
PAIRS = load_pairs()
OPPOSITES = PAIRS["opposite"]
SOUNDS = PAIRS["sound"]
COLOURS = PAIRS["colour"]
LEGS = PAIRS["legs"]
CAPITALS = PAIRS["capital"]
AMOUNTS = PAIRS["amount"]
KINDS = (
    "animal",
    "colour",
    "fruit",
    "vegetable",
    "day",
    "month",
    "city",
    "instrument",
    "shape",
    "sport",
    "drink",
    "job",
    "number",
    "food",
)
PLURALS = PAIRS["plural"]
ASKER, BLOCKS = Asker(), load_blocks(HERE / "knowledge.txt")
READING = tuple(tuple(line.split(" = ")) for line in lines_of(HERE / "reading.txt"))
FIELD = re.compile(r"\{(\w+)\}")
NUMBERS = WORDS["number"]
Topic = Callable[[random.Random], tuple[str, str]]


def article(word: str) -> str:
    """`a` or `an` before a word."""
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


def ask(rng: random.Random) -> tuple[str, str]:
    """One question and its answer."""
    return rng.choices(*TOPICS_AND_WEIGHTS)[0](rng)


def word_question(rng: random.Random) -> tuple[str, str]:
    """A question and an answer of one word."""
    table = rng.choice((OPPOSITES, COLOURS, CAPITALS, None, None))
    if table is None:
        kind, step = rng.choice(("day", "month")), rng.choice((-1, 1))
        at = rng.randrange(1, len(WORDS[kind]) - 1)
        word = "after" if step > 0 else "before"
        return f"Which {kind} comes {word} {WORDS[kind][at]}?", f"{WORDS[kind][at + step]}."
    left, right = rng.choice(list(table.items()))
    asked = {
        id(OPPOSITES): ("What is the opposite of {}?", "The opposite of {}?", "Name the opposite of {}."),
        id(COLOURS): ("What colour is {}?", "Which colour has {}?", "What color is {}?"),
        id(CAPITALS): ("What is the capital of {}?", "The capital of {}?", "Name the capital of {}."),
    }[id(table)]
    return rng.choice(asked).format(left), f"{right.capitalize()}."


def _sequence(rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(("day", "month", "number", "letter"))
    row = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ") if kind == "letter" else WORDS[kind]
    at, step = rng.randrange(1, len(row) - 1), rng.choice((-1, 1))
    word = rng.choice(("after", "after") if step > 0 else ("before", "before"))
    shown = row[at]
    question = rng.choice(
        (
            f"Which {kind} comes {word} {shown}?",
            f"What {kind} is {word} {shown}?",
            f"What comes {word} {shown}?",
            f"Name the {kind} {word} {shown}.",
            f"Tell me the {kind} that comes {word} {shown}.",
        )
    )
    answer = f"{row[at + step]} comes {word} {shown}."
    return question, answer[0].upper() + answer[1:]


def _opposite(rng: random.Random) -> tuple[str, str]:
    word, other = rng.choice(list(OPPOSITES.items()))
    if other not in ("short", "right", "light") and rng.random() < 0.4:
        word, other = other, word
    question = rng.choice(
        (
            f"What is the opposite of {word}?",
            f"Give me the opposite of {word}.",
            f"Which word is the opposite of {word}?",
            f"Name the opposite of {word}.",
            f"What is the antonym of {word}?",
        )
    )
    return question, f"The opposite of {word} is {other}."


def _sound(rng: random.Random) -> tuple[str, str]:
    animal, sound = rng.choice(list(SOUNDS.items()))
    question = rng.choice(
        (
            f"What sound does {article(animal)} make?",
            f"What does {article(animal)} say?",
            f"Which noise does {article(animal)} make?",
            f"How does {article(animal)} sound?",
        )
    )
    return question, f"{article(animal).capitalize()} {sound}."


def _colour(rng: random.Random) -> tuple[str, str]:
    thing, colour = rng.choice(list(COLOURS.items()))
    question = rng.choice(
        (
            f"What colour is {thing}?",
            f"What color is {thing}?",
            f"Which colour has {thing}?",
            f"Tell me the colour of {thing}.",
            f"What is the colour of {thing}?",
        )
    )
    return question, f"{thing[0].upper()}{thing[1:]} is {colour}."


def _legs(rng: random.Random) -> tuple[str, str]:
    animal, legs = rng.choice(list(LEGS.items()))
    count = NUMBERS[int(legs)] if legs != "0" else "no"
    return f"How many legs does {article(animal)} have?", f"{article(animal).capitalize()} has {count} legs."


def _capital(rng: random.Random) -> tuple[str, str]:
    country, city = rng.choice(list(CAPITALS.items()))
    question = rng.choice(
        (
            f"What is the capital of {country}?",
            f"Which city is the capital of {country}?",
            f"Name the capital of {country}.",
            f"{country}'s capital?",
        )
    )
    return question, f"The capital of {country} is {city}."


def _amount(rng: random.Random) -> tuple[str, str]:
    tail, number = rng.choice(list(AMOUNTS.items()))
    return rng.choice(("How many ", "Tell me how many ")) + tail + "?", number.capitalize() + "."


def _kind(rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(KINDS[:-1])
    word = rng.choice(WORDS[kind])
    other = rng.choice([name for name in KINDS if name != kind and word not in WORDS[name]])
    if rng.random() < 0.5:
        return f"Is {word} {article(kind)}?", f"Yes, {word} is {article(kind)}."
    return f"Is {word} {article(other)}?", f"No, {word} is {article(kind)}."


def _lists(rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(list(PLURALS))
    many = rng.randint(1, 5)
    number = rng.choice((NUMBERS[many], str(many)))
    noun = kind if many == 1 else PLURALS[kind]
    ask_for = rng.choice(
        (
            "Name",
            "List",
            "Give me",
            "Tell me",
            "Say",
            "Write down",
            "Please name",
            "Can you name",
            "I need",
            "Think of",
            "Write a list of",
        )
    )
    words = rng.sample(
        WORDS[kind][: 3 * many + 2], many
    )  # the first ones more often: a small model likes habits
    end = "?" if ask_for.startswith("Can") else "."
    return f"{ask_for} {number} {noun}{end}", ", ".join(words) + "."


def _sum(rng: random.Random) -> tuple[str, str]:
    kind = rng.randrange(3)
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    if kind == 1:
        a, b = max(a, b), min(a, b)
    if kind == 2:
        a, b = rng.randint(1, 5), rng.randint(1, 5)
    sign, word, result = (("+", "plus", a + b), ("-", "minus", a - b), ("x", "times", a * b))[kind]
    expression = rng.choice((f"{a} {sign} {b}", f"{a} {word} {b}", f"{a} {word} {b}"))
    question = rng.choice(
        (
            f"What is {expression}?",
            f"{expression}?",
            f"{expression} =",
            f"How much is {expression}?",
            f"Calculate {expression}.",
            f"Please compute {expression}.",
            f"Add up: {a} and {b}." if kind == 0 else f"What does {expression} give?",
        )
    )
    return question, f"{a} {word} {b} is {result}."


def _compare(rng: random.Random) -> tuple[str, str]:
    a, b = rng.sample(range(100), 2)
    larger = rng.random() < 0.5
    words = ("larger", "bigger", "greater", "higher") if larger else ("smaller", "lower", "less", "lesser")
    result = max(a, b) if larger else min(a, b)
    return f"Which number is {rng.choice(words)}, {a} or {b}?", f"{result}."


def _choose(rng: random.Random) -> tuple[str, str]:
    first, second = rng.sample(KINDS[:-1], 2)
    one, two = rng.choice(WORDS[first]), rng.choice(WORDS[second])
    options = [one, two]
    rng.shuffle(options)
    return f"Which of these is {article(first)}: {options[0]} or {options[1]}?", f"{one} is {article(first)}."


def _plain(rng: random.Random) -> tuple[str, str]:
    return ASKER.ask(rng.choice(BLOCKS), rng)


def _read(rng: random.Random) -> tuple[str, str]:
    """A short text, sometimes among others, and a question about it."""
    text, questions, answer = rng.choice(READING)
    words = {field: rng.choice(WORDS[field]) for field in FIELD.findall(text) if field != "port"}
    words["port"] = str(rng.randint(80, 9999))
    told = [text.format(**words)]
    if rng.random() < 0.4:
        other = rng.choice(READING)[0]
        drawn = {field: rng.choice(WORDS[field]) for field in FIELD.findall(other) if field != "port"}
        if other != text and not set(drawn.values()) & set(words.values()):
            told.append(other.format(**drawn, port=rng.randint(80, 9999)))
            rng.shuffle(told)
    question = rng.choice(questions.split("|")).format(**words)
    return f"{' '.join(told)} {question}", answer.format(**words)


def _one_word(rng: random.Random) -> tuple[str, str]:
    """A question that asks for one word itself."""
    question, answer = word_question(rng)
    lead = rng.choice(("In one word: ", "Answer in one word: ", "One word only: ", "Answer with one word. "))
    return lead + question, answer


WEIGHTED: tuple[tuple[float, Topic], ...] = (
    *(
        (2, _sequence),
        (1.5, _opposite),
        (1, _sound),
        (1, _colour),
        (0.7, _legs),
        (1, _capital),
        (0.7, _amount),
    ),
    *(
        (2, _kind),
        (2, _lists),
        (2.5, _sum),
        (1, _compare),
        (1, _choose),
        (2.5, _plain),
        (3, _read),
        (1, _one_word),
    ),
)
TOPICS_AND_WEIGHTS = ([topic for _, topic in WEIGHTED], [weight for weight, _ in WEIGHTED])
