"""Values for the parameters of tools, by kind: words of a list, numbers, times, texts; their JSON types."""

import random
from collections.abc import Callable

from models.cantor.corpus.grammar import load_words
from models.cantor.corpus.skills import COMMON, invented, phrase, sentence, some_word

WORDS = load_words()
TASKS = (
    "buy milk",
    "call the doctor",
    "water the flowers",
    "feed the cat",
    "pay the rent",
    "clean the kitchen",
    "read the report",
    "fix the bike",
    "walk the dog",
    "write a letter",
    "pack the bag",
    "send the invoice",
    "take out the trash",
    "book the tickets",
    "wash the car",
    "check the oven",
    "back up the server",
)
SAYINGS = (
    "I will be late",
    "see you tomorrow",
    "happy birthday",
    "the meeting is at noon",
    "please call me back",
    "dinner is ready",
    "I am on my way",
    "good luck today",
    "we need more milk",
    "the train is late",
    "thank you for the book",
    "hello from the office",
    "do not forget the keys",
    "all systems are running",
    "lunch at one",
)
EVENTS = (
    "meeting",
    "dinner",
    "party",
    "concert",
    "lunch",
    "workshop",
    "dentist",
    "interview",
    "lecture",
    "football game",
    "team meeting",
    "birthday party",
    "doctor visit",
    "call with Anna",
    "review",
    "exam",
    "yoga class",
    "picnic",
)
SERVICES = (
    "nginx",
    "gateway",
    "database",
    "cache",
    "worker",
    "mail",
    "backup",
    "engine",
    "web",
    "api",
    "redis",
    "proxy",
)
FOLDERS = (
    "docs",
    "src",
    "tmp",
    "data",
    "home",
    "logs",
    "music",
    "photos",
    "etc",
    "backup",
    "work",
    "reports",
)
ENDINGS = ("txt", "md", "json", "csv", "py", "log", "toml", "pdf", "yaml")


def type_of(kind: str) -> dict[str, object]:
    """The JSON schema of a kind of value."""
    head = kind.split(":", maxsplit=1)[0]
    if head == "enum":
        return {"type": "string", "enum": kind.split(":")[1].split(",")}
    return {"type": {"int": "integer", "amount": "number"}.get(head, "string")}


def draw_value(kind: str, rng: random.Random) -> str | int | float:
    """One value of a kind."""
    head, _, tail = kind.partition(":")
    if head == "int":
        low, high = map(int, tail.split(":"))
        return rng.randint(low, high)
    if head == "enum":
        return rng.choice(tail.split(","))
    if head in MAKERS:
        return MAKERS[head](rng)
    if rng.random() < 0.3:
        return (
            invented(rng).capitalize() if head in ("city", "name", "country", "language") else invented(rng)
        )
    return rng.choice(WORDS[head])


def _handle(rng: random.Random) -> str:
    word = invented(rng).lower() if rng.random() < 0.6 else rng.choice(WORDS["name"]).lower()
    return word + rng.choice(("", "", str(rng.randint(1, 99)), f"_{rng.choice(WORDS['abstract'])}"))


def _date(rng: random.Random) -> str:
    day, month = rng.randint(1, 28), rng.randint(1, 12)
    return rng.choice(
        (
            f"{rng.randint(2024, 2030)}-{month:02d}-{day:02d}",
            f"{WORDS['month'][month - 1]} {day}",
            f"{day} {WORDS['month'][month - 1]}",
            rng.choice(("today", "tomorrow", "tonight")),
        )
    )


def _words(rng: random.Random) -> str:
    return " ".join(rng.choice(COMMON) for _ in range(rng.randint(1, 4)))


def _plain(rng: random.Random) -> str:
    return rng.choice((sentence(rng).rstrip("."), _words(rng), rng.choice(SAYINGS)))


def _model(rng: random.Random) -> str:
    return rng.choice(("cantor", "small", f"{invented(rng).lower()}-{rng.randint(1, 70)}b", _handle(rng)))


def _version(rng: random.Random) -> str:
    return f"{rng.randint(0, 9)}.{rng.randint(0, 20)}" + rng.choice(("", f".{rng.randint(0, 9)}"))


def _amount(rng: random.Random) -> str | int | float:
    return rng.randint(1, 1000) if rng.random() < 0.75 else round(rng.uniform(0.5, 200), 1)


def _clock(rng: random.Random) -> str:
    hour, minute = rng.randint(0, 23), rng.choice((0, 0, 15, 30, 45, rng.randint(0, 59)))
    return rng.choice(
        (f"{hour}:{minute:02d}", f"{hour:02d}:{minute:02d}", f"{hour % 12 + 1} pm", f"{hour % 12 + 1} am")
    )


def _math(rng: random.Random) -> str:
    text = str(rng.randint(1, 99))
    for _ in range(rng.randint(1, 2)):
        text += rng.choice((" + ", " - ", " * ", "+", "*", " / ")) + str(rng.randint(1, 99))
    return text


def _path(rng: random.Random) -> str:
    name = rng.choice(WORDS["abstract"]) if rng.random() < 0.7 else invented(rng).lower()
    lead = rng.choice(("", "", "/" + rng.choice(FOLDERS) + "/", rng.choice(FOLDERS) + "/"))
    return f"{lead}{name}.{rng.choice(ENDINGS)}"


def _url(rng: random.Random) -> str:
    host = rng.choice((some_word(rng), invented(rng))).lower().replace(" ", "")
    return (
        f"https://{rng.choice(('', 'www.'))}{host}.{rng.choice(('com', 'org', 'net', 'example'))}"
        + rng.choice(("", "", "/" + rng.choice(WORDS["abstract"])))
    )


def _email(rng: random.Random) -> str:
    who = rng.choice(WORDS["name"]).lower() if rng.random() < 0.75 else invented(rng).lower()
    host = rng.choice(("example.com", "mail.com", "example.org", f"{invented(rng).lower()}.com", "test.net"))
    return f"{who}@{host}"


def _goods(rng: random.Random) -> str:
    word = rng.choice(WORDS[rng.choice(("fruit", "vegetable", "food", "drink", "object"))])
    return word + ("s" if rng.random() < 0.5 and not word.endswith("s") else "")


def _title(rng: random.Random) -> str:
    return " ".join(some_word(rng).capitalize() for _ in range(rng.randint(1, 3)))


def _short(rng: random.Random) -> str:
    return phrase(rng, 1, 4).rstrip(".!?")


def _quoted(rng: random.Random) -> str:
    return rng.choice((phrase(rng, 1, 5), sentence(rng), "good morning", "hello", "thank you", _short(rng)))


def _task(rng: random.Random) -> str:
    return rng.choice(TASKS) if rng.random() < 0.7 else f"{rng.choice(WORDS['verb'])} {_short(rng)}"


def _event(rng: random.Random) -> str:
    return rng.choice(EVENTS)


def _service(rng: random.Random) -> str:
    return rng.choice(SERVICES) if rng.random() < 0.7 else invented(rng).lower()


def _dir(rng: random.Random) -> str:
    return rng.choice(("/", "")) + rng.choice(FOLDERS) + rng.choice(("", "", "/" + rng.choice(FOLDERS)))


def _fullname(rng: random.Random) -> str:
    return rng.choice(WORDS["name"]) + rng.choice(("", " " + rng.choice(WORDS["family"])))


def _topic(rng: random.Random) -> str:
    return rng.choice(WORDS[rng.choice(("animal", "sport", "nature", "country", "abstract", "city"))])


def _table(rng: random.Random) -> str:
    return rng.choice(WORDS["abstract"]) + "s"


MAKERS: dict[str, Callable[[random.Random], str | int | float]] = {
    "amount": _amount,
    "clock": _clock,
    "math": _math,
    "path": _path,
    "url": _url,
    "email": _email,
    "goods": _goods,
    "title": _title,
    "phrase": _short,
    "quoted": _quoted,
    "sentence": sentence,
    "task": _task,
    "event": _event,
    "service": _service,
    "dir": _dir,
    "fullname": _fullname,
    "topic": _topic,
    "word": some_word,
    "table": _table,
    "handle": _handle,
    "date": _date,
    "words": _words,
    "plain": _plain,
    "model": _model,
    "version": _version,
}
