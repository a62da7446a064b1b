"""Dialogues: things told and asked for later, system prompts that are obeyed. Makes pairs, no documents."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from models.cantor.corpus.grammar import load_words
from models.cantor.corpus.skills import invented, some_word

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
FEATURES = {  # what is told: (kind of word, statements, questions, answer)
    "name": (
        "name",
        ("My name is {}.", "I am {}.", "I'm {}.", "Call me {}.", "Hi, my name is {}.", "Hello, I am {}."),
        (
            "What is my name?",
            "What's my name?",
            "Who am I?",
            "Do you remember my name?",
            "Tell me my name.",
            "Do you know what I am called?",
            "How am I called?",
        ),
        "Your name is {}.",
    ),
    "colour": (
        "colour",
        ("My favourite colour is {}.", "I like the colour {} best.", "My favorite color is {}."),
        (
            "What is my favourite colour?",
            "Which colour do I like best?",
            "What is my favorite color?",
            "Do you remember my favourite colour?",
        ),
        "Your favourite colour is {}.",
    ),
    "city": (
        "city",
        ("I live in {}.", "My home is in {}.", "I come from {}.", "I am from {}.", "My city is {}."),
        (
            "Where do I live?",
            "Which city do I live in?",
            "Where am I from?",
            "What is my city?",
            "In which city is my home?",
        ),
        "You live in {}.",
    ),
    "food": (
        "food",
        ("My favourite food is {}.", "I like {} most of all.", "I love to eat {}."),
        ("What is my favourite food?", "What do I like to eat?", "Which food do I like?"),
        "Your favourite food is {}.",
    ),
    "job": (
        "job",
        ("I work as a {}.", "My job is {}.", "I am a {}.", "By trade I am a {}."),
        ("What is my job?", "What do I do for a living?", "What do I work as?"),
        "You work as a {}.",
    ),
    "pet": (
        "name",
        ("My dog is called {}.", "I have a dog named {}.", "My dog's name is {}.", "I have a dog called {}."),
        ("What is my dog called?", "What is the name of my dog?", "What's my dog's name?"),
        "Your dog is called {}.",
    ),
    "cat": (
        "name",
        ("My cat is called {}.", "I have a cat named {}.", "My cat's name is {}."),
        ("What is my cat called?", "What is the name of my cat?", "What's my cat's name?"),
        "Your cat is called {}.",
    ),
    "code": (
        "code",
        (
            "The code is {}.",
            "Remember the code {}.",
            "The secret code is {}.",
            "Remember this code: {}.",
            "The password is {}.",
            "Please remember the number {}.",
            "Remember the number {}.",
        ),
        (
            "What is the code?",
            "What was the code?",
            "Tell me the code.",
            "Which code did I give you?",
            "What was the number?",
            "What number did I tell you?",
        ),
        "The code is {}.",
    ),
    "word": (
        "word",
        (
            "The secret word is {}.",
            "Remember the word {}.",
            "The magic word is {}.",
            "My word is {}.",
            "Please remember this word: {}.",
        ),
        (
            "What is the secret word?",
            "What was the word?",
            "Which word did I tell you?",
            "Tell me the word.",
            "What word should you remember?",
        ),
        "The word is {}.",
    ),
    "age": (
        "age",
        ("I am {} years old.", "My age is {}.", "I turned {} this year."),
        ("How old am I?", "What is my age?", "Do you know my age?"),
        "You are {} years old.",
    ),
}
ACKNOWLEDGE = ("All right, I will remember that.", "OK.", "Thank you, I will remember it.", "Good to know.")


@dataclass(frozen=True, slots=True)
class Fact:
    """Something the user tells: the statement, a later question, the answer."""

    told: str
    question: str
    answer: str
    greeting: str


def _told(rng: random.Random, taken: set[str]) -> Fact:
    feature = rng.choice([name for name in FEATURES if name not in taken])
    taken.add(feature)
    kind, statements, questions, answer = FEATURES[feature]
    value = _value(kind, rng)
    greeting = f"Nice to meet you, {value}!" if feature == "name" else ACKNOWLEDGE[0]
    return Fact(rng.choice(statements).format(value), rng.choice(questions), answer.format(value), greeting)


def _value(kind: str, rng: random.Random) -> str:
    if kind == "age":
        return str(rng.randint(5, 99))
    if kind == "code":
        return str(rng.randint(10, 99999))
    if kind == "word":
        return some_word(rng).lower()
    if rng.random() < 0.2:
        return invented(rng).capitalize() if kind in ("name", "city") else rng.choice(WORDS[kind])
    return rng.choice(WORDS[kind])


def recall(rng: random.Random, source: Source) -> list[Pair]:
    """Turns in which something is told first and asked for later, with other talk between."""
    taken: set[str] = set()
    facts = [_told(rng, taken) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    if rng.random() < 0.2:
        return [(f"{' '.join(fact.told for fact in facts)} {facts[0].question}", facts[0].answer)]
    pairs = [(fact.told, fact.greeting) for fact in facts]
    if rng.random() < 0.2:
        pairs = [(" ".join(fact.told for fact in facts), ACKNOWLEDGE[0])]
    pairs += [source(rng) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    asked = rng.sample(facts, rng.randint(1, len(facts)))
    pairs += [(fact.question, fact.answer) for fact in asked]
    if rng.random() < 0.1:
        unknown = _told(rng, taken)
        pairs.append((unknown.question, "You did not tell me that."))
    return pairs


def told_by_system(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    """A system prompt that holds something the user asks for."""
    kind, value = rng.choice(
        (
            ("name", rng.choice(WORDS["name"])),
            ("word", some_word(rng).lower()),
            ("code", str(rng.randint(10, 9999))),
            ("city", rng.choice(WORDS["city"])),
        )
    )
    line, question, answer = {
        "name": (f"The user's name is {value}.", "What is my name?", f"Your name is {value}."),
        "word": (f"The secret word is {value}.", "What is the secret word?", f"The secret word is {value}."),
        "code": (f"The code is {value}.", "What is the code?", f"The code is {value}."),
        "city": (f"The office is in {value}.", "Where is the office?", f"The office is in {value}."),
    }[kind]
    pairs = [source(rng)] if rng.random() < 0.3 else []
    return rng.choice(("", "You are a helpful assistant. ")) + line, [*pairs, (question, answer)]


def obeyed(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    """A system prompt that changes how everything is answered."""
    style = rng.choice(
        (_upper, _upper, _persona, _persona, _persona, _always, _prefix, _suffix, _json, _lower)
    )
    return style(rng, source)


def _some(rng: random.Random, source: Source) -> list[Pair]:
    return [source(rng) for _ in range(rng.choice((1, 1, 2)))]


def _upper(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    system = rng.choice(
        (
            "Answer in capital letters.",
            "Always answer in upper case.",
            "Write everything in capitals.",
            "Reply in uppercase only.",
            "You only write capital letters.",
            "Use only upper case letters.",
            "Answer in ALL CAPS.",
            "Speak only in capital letters.",
        )
    )
    return system, [(question, answer.upper()) for question, answer in _some(rng, source)]


def _lower(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    system = rng.choice(
        (
            "Answer in small letters.",
            "Always answer in lower case.",
            "Use only lowercase letters.",
            "Write everything in lower case.",
            "Never use capital letters.",
        )
    )
    return system, [(question, answer.lower()) for question, answer in _some(rng, source)]


def _persona(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    name = invented(rng).capitalize() if rng.random() < 0.4 else rng.choice(WORDS["name"])
    job = rng.choice(WORDS["job"])
    told, answer = rng.choice(
        (
            (f"You are {name}, a {job}.", f"I am {name}, a {job}."),
            (f"Your name is {name}.", f"I am {name}."),
            (f"You are {name}.", f"I am {name}."),
            (f"You are called {name} and you are a {job}.", f"I am {name}, a {job}."),
            (f"You are a {job} named {name}.", f"I am {name}, a {job}."),
        )
    )
    question = rng.choice(
        (
            "Who are you?",
            "What is your name?",
            "What's your name?",
            "Tell me your name.",
            "Please introduce yourself.",
            "Introduce yourself.",
            "What are you called?",
            "who are you",
        )
    )
    pairs = [(question, answer)]
    if rng.random() < 0.3:
        pairs.insert(rng.randrange(2), source(rng))
    return told + rng.choice(("", "", " Be brief.", " You are friendly.")), pairs


def _always(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    word = some_word(rng)
    shown = rng.choice((word, f'"{word}"'))
    system = rng.choice(
        (
            f"Always answer with the word {shown}.",
            f"Whatever the user says, answer {shown}.",
            f"Reply only with {shown}.",
            f"Only ever say {shown}.",
            f"Answer every question with {shown}.",
            f"You can only say {shown}.",
        )
    )
    return system, [(question, word) for question, _ in _some(rng, source)]


def _prefix(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    word = some_word(rng).capitalize()
    system = rng.choice(
        (
            f'Start every answer with "{word}:".',
            f'Begin each reply with "{word}:".',
            f'Every answer must start with "{word}:".',
        )
    )
    return system, [(question, f"{word}: {answer}") for question, answer in _some(rng, source)]


def _suffix(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    word = some_word(rng)
    system = rng.choice(
        (
            f'End every answer with the word "{word}".',
            f"Finish each reply with the word {word}.",
            f'Every answer must end with "{word}".',
            f"Always end with {word}.",
        )
    )
    return system, [(question, f"{answer} {word}") for question, answer in _some(rng, source)]


def _json(rng: random.Random, source: Source) -> tuple[str, list[Pair]]:
    key = rng.choice(("answer", "answer", "reply", "text", "result"))
    system = rng.choice(
        (
            f'Answer in JSON with the key "{key}".',
            f'Reply as a JSON object with one key, "{key}".',
            f"Answer only with JSON that has the key {key}.",
        )
    )
    return system, [(question, json.dumps({key: answer})) for question, answer in _some(rng, source)]


def yes_or_no(rng: random.Random, source: Source) -> tuple[str, list[Pair]] | None:
    """A system prompt that wants yes or no alone; None when the questions drawn do not fit."""
    pairs = [
        (question, answer)
        for question, answer in (source(rng) for _ in range(12))
        if answer.startswith(("Yes", "No,", "No."))
    ]
    system = rng.choice(
        (
            "Answer only with yes or no.",
            "Say only yes or no.",
            "Reply with yes or no.",
            "Answer yes or no, nothing else.",
            "Only answer yes or no.",
        )
    )
    short = [(question, "Yes." if answer.startswith("Yes") else "No.") for question, answer in pairs[:2]]
    return (system, short) if short else None
