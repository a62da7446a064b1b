"""System prompts that are obeyed: styles in which everything is answered, how they are put in systems.txt."""

import json
import random
import re
from collections.abc import Callable

from models.cantor.corpus.grammar import HERE, Choice, draw, lines_of, parse
from models.cantor.corpus.knowledge import word_question
from models.cantor.corpus.material import WORDS, invented, phrase, some_word

Pair = tuple[str, str]
Source = Callable[[random.Random], Pair]
Obeyed = tuple[str, list[Pair]]
INTRODUCE = parse(
    "(Who are you|What is your name|What's your name|Tell me your name|Please introduce yourself|who are you"
    "|Introduce yourself|What are you called|May I know your name|Say who you are|And you are|Your name|"
    "Who am I talking to|What should I call you|Hi, who is this|How are you called|Do you have a name)(?|?|)"
)
AROUND = ("You are a helpful assistant. ", "You are a friendly bot. ", "Be brief. ", "You help people. ")
TOPICS = {  # topics to refuse, and questions about them
    "the weather": (
        "What is the weather like?",
        "Will it rain tomorrow?",
        "Is it cold outside?",
        "How is the weather today?",
    ),
    "politics": (
        "Who should I vote for?",
        "Which party is the best?",
        "What do you think of the president?",
        "Tell me about politics.",
    ),
    "money": (
        "How do I get rich?",
        "How much do you earn?",
        "Should I buy shares?",
        "Can you lend me ten euros?",
    ),
    "sports": ("Who won the game?", "Which team is the best?", "Do you like football?", "What is the score?"),
    "food": ("What should I cook?", "What is for dinner?", "Do you like pizza?", "Give me a recipe."),
    "cats": ("Do you like cats?", "How old do cats get?", "What do cats eat?", "Tell me about cats."),
    "dogs": ("Do you like dogs?", "What do dogs eat?", "Tell me about dogs.", "Which dog is the biggest?"),
    "music": (
        "Which song do you like?",
        "Sing me a song.",
        "Who is the best singer?",
        "Tell me about music.",
    ),
    "games": ("Let us play a game.", "Which game do you like?", "Do you play chess?"),
    "religion": ("Is there a god?", "Which religion is right?", "Do you pray?"),
    "passwords": ("What is the password?", "Tell me the password.", "Give me your password."),
}
REFUSALS = ("I cannot talk about that.", "Sorry, I cannot talk about that.", "No comment.", "I must not say.")


def load_systems() -> dict[str, list[Choice]]:
    """The wordings of each style."""
    found: dict[str, list[Choice]] = {}
    name = ""
    for line in lines_of(HERE / "systems.txt"):
        if line.startswith("@"):
            name = line[2:].strip()
        else:
            found.setdefault(name, []).append(parse(line))
    return found


SYSTEMS = load_systems()


def obeyed(rng: random.Random, source: Source) -> Obeyed:
    """A system prompt that changes how everything is answered, and dialogue under it."""
    system, pairs = rng.choices(STYLES, WEIGHTS)[0](rng, source)
    if rng.random() < 0.2:
        system = rng.choice(AROUND) + system
    return system, pairs


def _system(style: str, rng: random.Random, **values: str) -> str:
    text = draw(rng.choice(SYSTEMS[style]), rng, {}).replace("\\{", "{").replace("\\}", "}")
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text[0].upper() + text[1:]


def _some(rng: random.Random, source: Source) -> list[Pair]:
    return [source(rng) for _ in range(rng.choice((1, 1, 1, 2)))]


def _mapped(name: str, change: Callable[[str], str]) -> Callable[[random.Random, Source], Obeyed]:
    """A style that only changes answers."""

    def style(rng: random.Random, source: Source) -> Obeyed:
        return _system(name, rng), [(question, change(answer)) for question, answer in _some(rng, source)]

    return style


def _shown(word: str, rng: random.Random) -> str:
    return rng.choice((word, f'"{word}"', f'"{word}"', f"'{word}'"))


def _said(rng: random.Random) -> str:
    """A word or two to be said always."""
    if rng.random() < 0.25:
        return phrase(rng, 2, 3).rstrip(".!?")
    return rng.choice(
        (some_word(rng), rng.choice(("Yes", "No", "OK", "Hello", "Ahoy", "Done", "Thanks", "Amen")))
    )


def _persona(rng: random.Random, source: Source) -> Obeyed:
    name = invented(rng).capitalize() if rng.random() < 0.4 else rng.choice(WORDS["name"])
    job, city = rng.choice(WORDS["job"]), rng.choice(WORDS["city"])
    system = _system("persona", rng, name=name, job=job, city=city)
    answer = f"I am {name}, a {job}." if f" {job}" in system else f"I am {name}."
    pairs = [(draw(INTRODUCE, rng, {}), answer)]
    if rng.random() < 0.3:
        pairs.insert(rng.randrange(2), source(rng))
    system = system if system[-1] == "." else f"{system}."
    return system + rng.choice(("", "", " Be brief.", " You are friendly.", " Help the user.")), pairs


def _always(rng: random.Random, source: Source) -> Obeyed:
    word = _said(rng)
    return _system("always", rng, shown=_shown(word, rng)), [
        (question, word) for question, _ in _some(rng, source)
    ]


def _prefix(rng: random.Random, source: Source) -> Obeyed:
    word = _said(rng).capitalize() + rng.choice(("", ":", ",", "!"))
    system = _system("prefix", rng, shown=_shown(word, rng) if word[-1].isalnum() else f'"{word}"')
    return system, [(question, f"{word} {answer}") for question, answer in _some(rng, source)]


def _suffix(rng: random.Random, source: Source) -> Obeyed:
    word = _said(rng)
    system = _system("suffix", rng, shown=_shown(word, rng))
    return system, [(question, f"{answer} {word}") for question, answer in _some(rng, source)]


def _json(rng: random.Random, source: Source) -> Obeyed:
    key = rng.choice(("answer", "answer", "reply", "text", "result", "message", "output", "response"))
    pairs = [(question, json.dumps({key: answer})) for question, answer in _some(rng, source)]
    return _system("json", rng, key=key), pairs


def _yes_or_no(rng: random.Random, source: Source) -> Obeyed:
    drawn = (source(rng) for _ in range(40))
    pairs = [(question, answer) for question, answer in drawn if re.match(r"(Yes|No)\b", answer)]
    short = [(question, "Yes." if answer.startswith("Yes") else "No.") for question, answer in pairs[:2]]
    return _system("yesno", rng), short or [("Are you a bot?", "Yes.")]


def _one_word(rng: random.Random, _: Source) -> Obeyed:
    return _system("oneword", rng), [word_question(rng) for _ in range(rng.choice((1, 1, 2)))]


def _number(rng: random.Random, _: Source) -> Obeyed:
    pairs = []
    for _at in range(rng.choice((1, 1, 2))):
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        a, b = max(a, b), min(a, b)
        sign, total = rng.choice((("plus", a + b), ("+", a + b), ("minus", a - b), ("-", a - b)))
        pairs.append(
            (
                rng.choice(("What is {}?", "{}?", "Compute {}.", "How much is {}?")).format(
                    f"{a} {sign} {b}"
                ),
                str(total),
            )
        )
    return _system("number", rng), pairs


def _refuse(rng: random.Random, source: Source) -> Obeyed:
    topic, questions = rng.choice(list(TOPICS.items()))
    refusal = rng.choice(REFUSALS)
    system = _system("refuse", rng, topic=topic, refusal=_shown(refusal, rng))
    told = refusal if refusal in system else "I cannot talk about that."
    pairs = [(rng.choice(questions), told)]
    if rng.random() < 0.3:
        pairs.insert(rng.randrange(2), source(rng))
    return system, pairs


def _repeat(rng: random.Random, source: Source) -> Obeyed:
    texts = [source(rng)[0] if rng.random() < 0.4 else phrase(rng) for _ in range(rng.choice((1, 1, 2)))]
    return _system("repeat", rng), [(text, text) for text in texts]


def _call(rng: random.Random, source: Source) -> Obeyed:
    name = rng.choice(WORDS["name"]) if rng.random() < 0.7 else invented(rng).capitalize()
    return _system("call", rng, name=name), [
        (question, f"{name}, {_low(answer)}") for question, answer in _some(rng, source)
    ]


def _low(answer: str) -> str:
    first = answer.split(maxsplit=1)[0]
    return answer[0].lower() + answer[1:] if first in ("The", "A", "An", "Yes.", "No.", "You") else answer


WEIGHTED: tuple[tuple[float, Callable[[random.Random, Source], Obeyed]], ...] = (
    (2.5, _mapped("upper", str.upper)),
    (1.0, _mapped("lower", str.lower)),
    (2.5, _persona),
    (2.0, _always),
    (1.5, _prefix),
    (1.5, _suffix),
    (1.5, _json),
    (1.2, _yes_or_no),
    (1.5, _one_word),
    (0.8, _number),
    (0.8, _refuse),
    (0.6, _repeat),
    (0.3, _mapped("quotes", '"{}"'.format)),
    (0.2, _mapped("brackets", "({})".format)),
    (0.3, _mapped("exclaim", lambda answer: answer.rstrip(".") + "!")),
    (0.4, _call),
)
STYLES = tuple(style for _, style in WEIGHTED)
WEIGHTS = tuple(weight for weight, _ in WEIGHTED)
