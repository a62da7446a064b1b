"""Values for the parameters of tools, by kind: words of a list, numbers, times, texts; their JSON types."""

import random
from collections.abc import Callable

from models.cantor.corpus.grammar import load_words
from models.cantor.corpus.material import COMMON, invented, phrase, sentence, some_word

Value = str | int | float | bool | list[str]
WORDS = load_words()
TASKS, SAYINGS, EVENTS = (WORDS[name] for name in ("task", "saying", "event"))
SERVICES, FOLDERS = WORDS["service"], WORDS["folder"]
NUMBERS = WORDS["number"]
SPELLED = 0.15  # share of small numbers that are said in letters
CAPITALS = frozenset("city name country language venue brand petname song artist film".split())
ENDINGS = ("txt", "md", "json", "csv", "py", "log", "toml", "pdf", "yaml", "html", "png", "jpg", "sh", "xml")


def type_of(kind: str) -> dict[str, object]:
    """The JSON schema of a kind of value."""
    head, _, tail = kind.partition(":")
    if head == "enum":
        return {"type": "string", "enum": tail.split(",")}
    if head == "list":
        return {"type": "array", "items": {"type": "string"}}
    return {"type": TYPES.get(head, "string")}


TYPES = {"int": "integer", "amount": "number", "num": "number", "dec": "number", "bool": "boolean"}


def draw_value(kind: str, rng: random.Random) -> Value:
    """One value of a kind."""
    head, _, tail = kind.partition(":")
    if head == "int":
        low, high = map(int, tail.split(":"))
        return rng.randint(low, high)
    if head == "dec":
        least, most = map(float, tail.split(":"))
        value = round(rng.uniform(least, most), rng.choice((0, 1, 1, 2)))
        return int(value) if value == int(value) else value
    if head == "enum":
        return rng.choice(tail.split(","))
    if head == "list":
        return list(dict.fromkeys(str(draw_value(tail, rng)) for _ in range(rng.choice((2, 2, 3, 3, 4)))))
    if head in MAKERS:
        return MAKERS[head](rng)
    if rng.random() < 0.2:
        return invented(rng).capitalize() if head in CAPITALS else invented(rng)
    return rng.choice(WORDS[head])


def said(value: Value, rng: random.Random) -> str:
    """A value as a request says it."""
    if not isinstance(value, list):
        return str(value)
    if len(value) == 1:
        return value[0]
    return ", ".join(value[:-1]) + rng.choice((" and ", " and ", ", ")) + value[-1]


def spelled(value: Value, rng: random.Random) -> str:
    """A value as a request says it, a small number as a word now and then."""
    if type(value) is int and 1 < value < len(NUMBERS) and rng.random() < SPELLED:
        return NUMBERS[value]
    return said(value, rng)


def _handle(rng: random.Random) -> str:
    word = invented(rng).lower() if rng.random() < 0.6 else rng.choice(WORDS["name"]).lower()
    return word + rng.choice(("", "", str(rng.randint(1, 99)), f"_{rng.choice(WORDS['abstract'])}"))


def _isodate(rng: random.Random) -> str:
    if rng.random() < 0.55:
        return f"{rng.randint(2023, 2031)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    return rng.choice((rng.choice(WORDS["day"]), _date(rng), _date(rng)))


def _num(rng: random.Random) -> int | float:
    roll = rng.random()
    if roll < 0.75:
        return rng.randint(0, 10 ** rng.randint(1, 4))
    return round(rng.uniform(0, 100), rng.choice((1, 2))) if roll < 0.92 else -rng.randint(1, 99)


def _phone(rng: random.Random) -> str:
    digits = "".join(rng.choices("0123456789", k=rng.randint(3, 6)))
    return (
        rng.choice(("", "", "+1 ", "+44 ", "0"))
        + f"{rng.randint(100, 999)}{rng.choice(('-', ' ', ''))}{digits}"
    )


def _street(rng: random.Random) -> str:
    name = rng.choice((rng.choice(WORDS["family"]), rng.choice(WORDS["nature"]), invented(rng))).capitalize()
    kind = rng.choice(("Street", "Road", "Avenue", "Lane", "Square"))
    return rng.choice(
        (f"{rng.randint(1, 250)} {name} {kind}", f"{name} {kind} {rng.randint(1, 99)}", f"{name} {kind}")
    )


def _code(rng: random.Random) -> str:
    name, other = rng.choice(WORDS["abstract"]), rng.randint(1, 99)
    return rng.choice(
        (
            f"print({other})",
            f"{name} = {other}",
            f"len('{name}')",
            f"print('{name}')",
            f"{other} + {rng.randint(1, 99)}",
            f"sum([{other}, {rng.randint(1, 9)}])",
            f"max({other}, 7)",
        )
    )


def _command(rng: random.Random) -> str:
    path = _path(rng)
    return rng.choice(
        (
            f"ls {_dir(rng)}",
            f"cat {path}",
            f"rm {path}",
            f"echo {_short(rng)}",
            "df -h",
            "uptime",
            f"mkdir {_dir(rng)}",
            "git status",
            "whoami",
            f"python {path}",
            f"grep {some_word(rng)} {path}",
        )
    )


def _sql(rng: random.Random) -> str:
    table, field = _table(rng), rng.choice(WORDS["abstract"])
    return rng.choice(
        (
            f"SELECT * FROM {table}",
            f"SELECT {field} FROM {table}",
            f"DELETE FROM {table}",
            f"SELECT {field} FROM {table} WHERE id = {rng.randint(1, 999)}",
            f"SELECT COUNT(*) FROM {table}",
        )
    )


def _branch(rng: random.Random) -> str:
    word = rng.choice((rng.choice(WORDS["abstract"]), invented(rng).lower()))
    return rng.choice(
        ("main", "develop", f"feature-{word}", f"fix/{word}", f"{word}", f"release-{_version(rng)}")
    )


def _repo(rng: random.Random) -> str:
    word = rng.choice((rng.choice(WORDS["abstract"]), invented(rng).lower()))
    return rng.choice((word, f"{invented(rng).lower()}/{word}", f"{word}-{rng.choice(SERVICES)}", "antiphon"))


def _flight(rng: random.Random) -> str:
    letters = "".join(rng.choices("ABDEFJKLMNQRSTU", k=2))
    return f"{letters}{rng.choice(('', ' '))}{rng.randint(10, 9999)}"


def _tracking(rng: random.Random) -> str:
    return "".join(rng.choices("ABCDEFGHJKLMNPRSTUVWXYZ", k=rng.choice((0, 1, 2)))) + str(
        rng.randint(10**4, 10**8)
    )


def _host(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return ".".join(str(rng.randint(0, 255)) for _ in range(4))
    return f"{invented(rng).lower()}.{rng.choice(('com', 'org', 'net', 'example.com', 'local', 'io'))}"


def _channel(rng: random.Random) -> str:
    word = rng.choice((rng.choice(WORDS["abstract"]), rng.choice(SERVICES), "general", "random", "news"))
    return rng.choice(("", "#")) + word


def _phraselow(rng: random.Random) -> str:
    return " ".join(some_word(rng) for _ in range(rng.randint(1, 6)))


def _somelower(rng: random.Random) -> str:
    return (rng.choice(COMMON) if rng.random() < 0.7 else invented(rng)).lower()


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


def _amount(rng: random.Random) -> int | float:
    return rng.randint(1, 1000) if rng.random() < 0.75 else round(rng.uniform(0.5, 200), rng.choice((1, 2)))


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


def _ref(rng: random.Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHIKLMNOPRSTUVWXZ", k=rng.choice((1, 1, 2, 3))))
    letters = rng.choice((letters, letters, "INV", "SO", "KD", "REF", "C"))
    return letters + rng.choice(("-", "-", "-", "")) + str(rng.randint(1, 10 ** rng.randint(2, 5)))


def _doctor(rng: random.Random) -> str:
    name = rng.choice(WORDS["family"]) if rng.random() < 0.7 else invented(rng).capitalize()
    return rng.choice(("Dr. ", "Dr. ", "Dr ", "Doctor ", "")) + name


def _digits(rng: random.Random) -> str:
    return "".join(rng.choices("0123456789", k=rng.choice((4, 4, 4, 5, 6))))


def _equation(rng: random.Random) -> str:
    return (
        f"{rng.choice(('', '2', '3', str(rng.randint(4, 19))))}{rng.choice('xxy')} {rng.choice('+-')} "
        f"{rng.randint(1, 40)} = {rng.choice((str(rng.randint(0, 90)), f'{rng.randint(2, 9)}x'))}"
    )


def _function(rng: random.Random) -> str:
    inner = rng.choice(("x", "x", "2x", "x + 1", "3x - 2", "x^2"))
    return rng.choice(
        (f"{rng.choice(('sin', 'cos', 'exp', 'log', 'sqrt', 'tan'))}({inner})", f"{inner} + 4", "x^3")
    )


def _bool(rng: random.Random) -> bool:
    return rng.random() < 0.5


MAKERS: dict[str, Callable[[random.Random], Value]] = {
    "bool": _bool,
    "ref": _ref,
    "doctor": _doctor,
    "digits": _digits,
    "equation": _equation,
    "function": _function,
    "isodate": _isodate,
    "num": _num,
    "phone": _phone,
    "street": _street,
    "code": _code,
    "command": _command,
    "sql": _sql,
    "branch": _branch,
    "repo": _repo,
    "flight": _flight,
    "tracking": _tracking,
    "host": _host,
    "channel": _channel,
    "phraselow": _phraselow,
    "somelower": _somelower,
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
