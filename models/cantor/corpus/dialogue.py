"""Dialogues: things told and asked for later, system prompts that are obeyed. Makes pairs, no documents."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from models.cantor.corpus.grammar import HERE, Choice, draw, lines_of, load_words, parse
from models.cantor.corpus.material import invented, some_word

WORDS = load_words()
Pair = tuple[str, str]
Source = Callable[[random.Random], Pair]

PLAIN_SYSTEMS = (
    "You are a helpful assistant.",
    "You are cantor, a small demo model.",
    "You are a helpful assistant. Be brief.",
    "Answer briefly.",
    "Be concise.",
    "You are a friendly assistant.",
    "Answer the user's questions.",
    "Be polite.",
    "You answer questions about Antiphon.",
    "You are the assistant of the Antiphon server.",
    "Answer in English.",
    "You are a helpful, honest assistant.",
    "Keep your answers short.",
    "Help the user.",
    "You are an expert on Antiphon.",
    "You are an AI assistant.",
    "Give short and correct answers.",
    "You are a bot in a chat window.",
    "Be kind and brief.",
)
ACKNOWLEDGE = "All right, I will remember that."
ASKED_BEFORE = parse(
    "(What was|Tell me|Repeat|Say again) my (first|very first) (question|message)(?|)"
    "|What did I (ask|say) (you |)first?"
    "|What was the first thing I (asked|said)( you|)?"
)
SAID_BEFORE = parse(
    "What did you (just |)(say|answer)( before| last|)?"
    "|(Say|Repeat) (that|your answer|your last answer|it) again."
    "|(Again|Once more|Repeat), please.|(Can|Could) you (repeat|say) that( again|)?"
    "|Repeat (that|your answer|what you said)."
)
ASKED_LAST = parse(
    "What was my (last|previous) (question|message)?"
    "|What did I (ask before|ask last|say before|just say|just ask)?"
    "|(Repeat|Tell me) my (last|previous) question."
)


@dataclass(frozen=True, slots=True)
class Feature:
    """Something a user may tell: the kind of its value, how it is told and asked for, the answer."""

    kind: str
    answer: str
    told: tuple[Choice, ...]
    asked: tuple[Choice, ...]


def load_features() -> dict[str, Feature]:
    """Every feature of told.txt, by its name."""
    rows: list[tuple[list[str], list[Choice], list[Choice]]] = []
    for line in lines_of(HERE / "told.txt"):
        if line.startswith("@"):
            rows.append((line[2:].split(" : "), [], []))
        else:
            (rows[-1][1] if line.startswith("!") else rows[-1][2]).append(parse(line[2:]))
    return {head[0]: Feature(head[1], head[2], tuple(told), tuple(asked)) for head, told, asked in rows}


FEATURES = load_features()


@dataclass(frozen=True, slots=True)
class Fact:
    """Something the user tells: the statement, a later question, the answer."""

    told: str
    question: str
    answer: str
    greeting: str


def _told(rng: random.Random, taken: set[str]) -> Fact:
    name = rng.choice([name for name in FEATURES if name not in taken])
    taken.add(name)
    return _fact(name, rng)


def _fact(name: str, rng: random.Random) -> Fact:
    feature = FEATURES[name]
    value = _value(feature.kind, rng)
    greeting = f"Nice to meet you, {value}!" if name == "name" else ACKNOWLEDGE
    question = draw(rng.choice(feature.asked), rng, {})
    question += "." if question.startswith(("Tell", "Say", "Repeat", "Remember", "Give")) else "?"
    told = draw(rng.choice(feature.told), rng, {}).replace("{}", value)
    return Fact(told, question, feature.answer.format(value), greeting)


def _value(kind: str, rng: random.Random) -> str:
    if kind == "age":
        return str(rng.randint(5, 99))
    if kind == "code":
        return str(rng.randint(2, 10 ** rng.randint(1, 6) + 9))
    if kind == "handle":
        return invented(rng) + rng.choice(("", str(rng.randint(1, 999)), f"-{some_word(rng)}"))
    if kind == "word":
        return some_word(rng).lower()
    if rng.random() < 0.25:
        return invented(rng).capitalize() if kind in ("name", "city") else rng.choice(WORDS[kind])
    return rng.choice(WORDS[kind])


def recall(rng: random.Random, source: Source) -> list[Pair]:
    """Turns in which something is told first and asked for later, with other talk between."""
    roll = rng.random()
    if roll < 0.1:
        return _said_again(rng, source)
    taken: set[str] = set()
    facts = [_told(rng, taken) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    if roll < 0.3:
        return [(f"{' '.join(fact.told for fact in facts)} {facts[0].question}", facts[0].answer)]
    pairs = [(fact.told, fact.greeting) for fact in facts]
    if roll < 0.5:
        pairs = [(" ".join(fact.told for fact in facts), ACKNOWLEDGE)]
    if roll > 0.93:
        return [*pairs, *_corrected(rng, taken, source)]
    pairs += [source(rng) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    asked = rng.sample(facts, rng.randint(1, len(facts)))
    pairs += [(fact.question, fact.answer) for fact in asked]
    if rng.random() < 0.1:
        unknown = _told(rng, taken)
        pairs.append((unknown.question, "You did not tell me that."))
    return pairs


def _corrected(rng: random.Random, taken: set[str], source: Source) -> list[Pair]:
    """Something told twice: what was told last counts."""
    first = _told(rng, taken)
    second = _fact(next(name for name, feature in FEATURES.items() if _same(feature, first)), rng)
    lead = rng.choice(("No, wait. ", "Sorry, I was wrong. ", "That has changed. ", "Correction: "))
    between = [source(rng)] if rng.random() < 0.4 else []
    return [
        (first.told, first.greeting),
        *between,
        (lead + second.told, second.greeting),
        (second.question, second.answer),
    ]


def _same(feature: Feature, fact: Fact) -> bool:
    start, _, end = feature.answer.partition("{}")
    return fact.answer.startswith(start) and fact.answer.endswith(end)


def _said_again(rng: random.Random, source: Source) -> list[Pair]:
    """Questions about the dialogue itself: what was asked first or last, what was answered."""
    pairs = [source(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    roll = rng.random()
    if roll < 0.4:
        return [*pairs, (draw(SAID_BEFORE, rng, {}), pairs[-1][1])]
    if roll < 0.7:
        return [*pairs, (draw(ASKED_LAST, rng, {}), f'You said: "{pairs[-1][0]}"')]
    return [*pairs, (draw(ASKED_BEFORE, rng, {}), f'You said: "{pairs[0][0]}"')]


def told_by_system(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    """A system prompt that holds something the user asks for."""
    line, question, answer = rng.choice(TOLD_BY_SYSTEM)
    kind = line[line.index("{") + 1 : line.index("}")]
    value = _value(kind, rng) if kind != "clock" else f"{rng.randint(1, 12)} {rng.choice(('am', 'pm'))}"
    pairs = [source(rng)] if rng.random() < 0.3 else []
    system = rng.choice(("", "", "You are a helpful assistant. ", "You work in an office. "))
    system += line.replace("{" + kind + "}", value) + rng.choice(("", "", " Be brief.", " Help the user."))
    return system, [*pairs, (rng.choice(question.split("|")), answer.replace("{}", value))]


TOLD_BY_SYSTEM = (
    ("The user's name is {name}.", "What is my name?|Who am I?|Tell me my name.", "Your name is {}."),
    (
        "The secret word is {word}.",
        "What is the secret word?|Tell me the secret word.",
        "The secret word is {}.",
    ),
    ("The code is {code}.", "What is the code?|Tell me the code.|Which code is it?", "The code is {}."),
    ("The office is in {city}.", "Where is the office?|In which city is the office?", "The office is in {}."),
    (
        "The shop opens at {clock}.",
        "When does the shop open?|When do you open?|At what time does it open?",
        "The shop opens at {}.",
    ),
    (
        "The shop closes at {clock}.",
        "When does the shop close?|When do you close?|Until when is it open?",
        "The shop closes at {}.",
    ),
    ("The boss is called {name}.", "Who is the boss?|What is the boss called?", "The boss is called {}."),
    ("Today is {day}.", "What day is it?|Which day is today?|What day is it today?", "Today is {}."),
    (
        "The meeting is on {day}.",
        "When is the meeting?|On which day is the meeting?",
        "The meeting is on {}.",
    ),
    (
        "The price is {age} euros.",
        "What does it cost?|What is the price?|How much is it?",
        "The price is {} euros.",
    ),
    (
        "The soup of the day is {vegetable} soup.",
        "What is the soup of the day?|Which soup do you have?",
        "The soup of the day is {} soup.",
    ),
    (
        "The password of the guest network is {handle}.",
        "What is the password of the guest network?|What is the wifi password?",
        "The password is {}.",
    ),
    (
        "The room is number {code}.",
        "Which room is it?|What is the number of the room?",
        "The room is number {}.",
    ),
    ("Lunch today is {food}.", "What is for lunch?|What is there for lunch today?", "Lunch today is {}."),
)
