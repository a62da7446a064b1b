"""Exercises a test can check: copying, spelling, counting, sorting, short JSON. Questions and exact answers.

How they are asked stands in skills.txt; what is asked and answered is made here.
"""

import json
import random
from collections.abc import Callable

from models.cantor.corpus.grammar import HERE, Choice, draw, lines_of, parse
from models.cantor.corpus.material import WORDS, phrase, plain_word, sentence, some_word, some_words
from models.cantor.corpus.objects import json_get, json_list, json_object

Filled = tuple[dict[str, str], str]  # what is filled into the request, and the answer
NTH = ("first", "second", "third", "fourth", "fifth", "sixth")
STEPS = {2: ("two", "second"), 3: ("three", "third"), 5: ("five", "fifth"), 10: ("ten", "tenth")}
BETWEEN = {  # what stands between letters or words: its name, the mark
    "hyphens": "-",
    "a hyphen": "-",
    "dashes": "-",
    "spaces": " ",
    "a space": " ",
    "commas": ", ",
    "dots": ".",
    "a slash": "/",
    "slashes": "/",
}
JOINTS = {
    "commas": ", ",
    "a comma": ", ",
    "and": " and ",
    "a plus sign": " + ",
    "hyphens": "-",
    "a semicolon": "; ",
}


def load_requests() -> dict[str, list[Choice]]:
    """The ways to ask for each exercise."""
    found: dict[str, list[Choice]] = {}
    name = ""
    for line in lines_of(HERE / "skills.txt"):
        if line.startswith("@"):
            name = line[2:].strip()
        else:
            found.setdefault(name, []).append(parse(line.replace("\\n", "\n")))
    return found


REQUESTS = load_requests()


def ask(rng: random.Random) -> tuple[str, str]:
    """One exercise and its only right answer."""
    name = rng.choices(NAMES, WEIGHTS)[0]
    values, answer = EXERCISES[name][1](rng)
    return request(name, values, rng), answer


def request(name: str, values: dict[str, str], rng: random.Random) -> str:
    """An exercise in one of its wordings."""
    text = draw(rng.choice(REQUESTS[name]), rng, {})
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


def _copy(rng: random.Random) -> Filled:
    roll = rng.random()
    if roll < 0.5:
        text = sentence(rng) if rng.random() < 0.8 else f"{sentence(rng)} {sentence(rng)}"
        text = text if rng.random() < 0.7 else text.rstrip(".")
    elif roll < 0.9:
        text = phrase(rng)
    else:
        text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789-_.#ABCXYZ", k=rng.randint(3, 12)))
    return {"text": text}, text


def _word(rng: random.Random) -> str:
    roll = rng.random()
    return rng.choice(WORDS["name"]) if roll < 0.12 else plain_word(rng)


def _quoted(word: str, rng: random.Random) -> str:
    return rng.choice((word, word, f'"{word}"', f"'{word}'"))


def _spell(rng: random.Random) -> Filled:
    word = _word(rng)
    return {"word": _quoted(word, rng)}, "-".join(word.lower())


def _spell_with(rng: random.Random) -> Filled:
    word = _word(rng)
    name, mark = rng.choice(list(BETWEEN.items()))
    return {"word": _quoted(word, rng), "name": name}, mark.join(word.lower())


def _unspell(rng: random.Random) -> Filled:
    word = plain_word(rng)
    return {"letters": rng.choice(("-", " ", ", ")).join(word)}, word


def _letters(rng: random.Random) -> Filled:
    word = plain_word(rng)
    return {"word": _quoted(word, rng)}, f"The word {word} has {len(word)} letters."


def _words(rng: random.Random) -> Filled:
    text = " ".join(plain_word(rng) for _ in range(rng.randint(2, 7)))
    return {"text": text}, f"It has {len(text.split())} words."


def _nth_letter(rng: random.Random) -> Filled:
    word = plain_word(rng)
    at = rng.choice((0, 0, len(word) - 1, len(word) - 1, 1, 2)) % len(word)
    nth = "last" if at == len(word) - 1 else NTH[min(at, 5)]
    at = at if nth == "last" else min(at, 5)
    return {"word": _quoted(word, rng), "nth": nth}, f"The {nth} letter of {word} is {word[at]}."


def _nth_word(rng: random.Random) -> Filled:
    words = some_words(rng, 3, 6)
    at = rng.choice((0, 0, 1, 2, 3, len(words) - 1, len(words) - 1)) % len(words)
    nth = "last" if at == len(words) - 1 else NTH[at]
    return {"text": rng.choice((" ", " ", ", ")).join(words), "nth": nth}, words[at]


def _numbers(numbers: range | list[int]) -> str:
    return ", ".join(map(str, numbers))


def _count(rng: random.Random) -> Filled:
    low = rng.choice((1, 1, 1, 0, rng.randint(2, 90)))
    high = low + rng.randint(2, 11)
    return {"low": str(low), "high": str(high)}, _numbers(range(low, high + 1)) + "."


def _count_to(rng: random.Random) -> Filled:
    high = rng.randint(2, 15)
    shown = WORDS["number"][high] if high <= 12 and rng.random() < 0.4 else str(high)
    return {"high": shown}, _numbers(range(1, high + 1)) + "."


def _count_down(rng: random.Random) -> Filled:
    low = rng.choice((1, 1, 1, 0, rng.randint(2, 40)))
    high = low + rng.randint(2, 10)
    return {"low": str(low), "high": str(high)}, _numbers(range(high, low - 1, -1)) + "."


def _count_by(rng: random.Random) -> Filled:
    step, (name, nth) = rng.choice(list(STEPS.items()))
    low = rng.choice((step, step, 0))
    high = low + step * rng.randint(2, 8)
    values = {"step": name, "stepth": nth, "low": str(low), "high": str(high)}
    return values, _numbers(range(low, high + 1, step)) + "."


def _evens(rng: random.Random) -> Filled:
    kind, low = rng.choice((("even", 0), ("odd", 1)))
    start, size = rng.randint(0, 6), rng.randint(4, 14)
    found = [number for number in range(start, start + size + 1) if number % 2 == low]
    return {"kind": kind, "low": str(start), "high": str(start + size)}, _numbers(found) + "."


def _upper(rng: random.Random) -> Filled:
    text = (
        sentence(rng).rstrip(".")
        if rng.random() < 0.3
        else " ".join(plain_word(rng) for _ in range(rng.randint(1, 4)))
    )
    return {"text": text}, text.upper()


def _lower(rng: random.Random) -> Filled:
    text = " ".join(plain_word(rng) for _ in range(rng.randint(1, 4)))
    return {"text": text.upper() if rng.random() < 0.7 else text.title()}, text


def _reverse(rng: random.Random) -> Filled:
    word = next(word for word in iter(lambda: plain_word(rng), "") if len(word) <= 6)
    return {"word": _quoted(word, rng)}, word[::-1]


def _reverse_words(rng: random.Random) -> Filled:
    words = some_words(rng, 2, 5)
    joint = rng.choice((" ", ", "))
    return {"text": joint.join(words)}, joint.join(reversed(words))


def _sort(rng: random.Random, *, down: bool = False) -> Filled:
    numbers = rng.sample(range(rng.choice((10, 20, 100))), rng.randint(2, 5))
    return {"text": _numbers(numbers)}, _numbers(sorted(numbers, reverse=down)) + "."


def _sort_down(rng: random.Random) -> Filled:
    return _sort(rng, down=True)


def _sort_words(rng: random.Random) -> Filled:
    words = list(dict.fromkeys(plain_word(rng) for _ in range(rng.randint(2, 4))))
    return {"text": ", ".join(words)}, ", ".join(sorted(words)) + "."


def _extreme(rng: random.Random) -> Filled:
    numbers = rng.sample(range(rng.choice((10, 20, 100))), rng.randint(2, 5))
    kind, pick = rng.choice(
        (("largest", max), ("biggest", max), ("highest", max), ("smallest", min), ("lowest", min))
    )
    return {"text": _numbers(numbers), "kind": kind}, f"{pick(numbers)}."


def _twice(rng: random.Random) -> Filled:
    word, many = some_word(rng), rng.randint(2, 5)
    times = (
        rng.choice(("twice", "two times"))
        if many == 2
        else rng.choice((f"{WORDS['number'][many]} times", f"{many} times"))
    )
    return {"word": word, "times": times}, " ".join([word] * many)


def _join(rng: random.Random) -> Filled:
    words = some_words(rng, 2, 5)
    name, mark = rng.choice(list(JOINTS.items()))
    return {"text": " ".join(words), "name": name}, mark.join(words)


def _replace(rng: random.Random) -> Filled:
    words = sentence(rng).rstrip(".!?").split()
    old, new = rng.choice(words[1:]), plain_word(rng)
    text = " ".join(words)
    return {"old": old, "new": new, "text": text}, " ".join(new if word == old else word for word in words)


def _remove(rng: random.Random) -> Filled:
    words = some_words(rng, 3, 6)
    old = rng.choice(words)
    joint = rng.choice((" ", ", "))
    return {"old": old, "text": joint.join(words)}, joint.join(word for word in words if word != old)


def _json_key(rng: random.Random) -> Filled:
    key = rng.choice(("answer", "answer", "result", "text", "reply", "value"))
    name = rng.choice(("plus", "letters", "less", "upper", "extreme"))
    values, answer = EXERCISES[name][1](rng)
    return {"key": key, "question": request(name, values, rng)}, json.dumps(
        {key: answer.rstrip(".") if name == "extreme" else answer}
    )


def _quote(rng: random.Random) -> Filled:
    text = phrase(rng, 1, 3).rstrip(".!?")
    return {"text": text}, f'"{text}"'


def _brackets(rng: random.Random) -> Filled:
    text = phrase(rng, 1, 3).rstrip(".!?")
    return {"text": text}, f"({text})"


def _bullets(rng: random.Random) -> Filled:
    words = some_words(rng, 2, 5)
    return {"text": ", ".join(words)}, "\n".join(f"- {word}" for word in words)


def _first_letters(rng: random.Random) -> Filled:
    words = [plain_word(rng) for _ in range(rng.randint(2, 5))]
    return {"text": " ".join(words)}, ", ".join(word[0] for word in words) + "."


def _next(rng: random.Random) -> Filled:
    step, low = rng.choice((1, 1, 2, 2, 5, 10)), rng.randint(0, 20)
    low = low if step < 5 else low * step
    row = [low + step * at for at in range(rng.randint(3, 5))]
    return {"text": _numbers(row)}, f"{row[-1] + step}."


def _plus(rng: random.Random) -> Filled:
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    return {"a": str(a), "b": str(b), "things": rng.choice(WORDS["thing"])}, f"{a} plus {b} is {a + b}."


def _less(rng: random.Random) -> Filled:
    b, rest = rng.randint(0, 10), rng.randint(0, 10)
    values = {"a": str(b + rest), "b": str(b), "things": rng.choice(WORDS["thing"])}
    return values, f"{b + rest} minus {b} is {rest}."


def _larger(rng: random.Random) -> Filled:
    a, b = rng.sample(range(rng.choice((10, 20, 100))), 2)
    answer = f"Yes, {a} is larger than {b}." if a > b else f"No, {a} is smaller than {b}."
    return {"a": str(a), "b": str(b)}, answer


def _parity(rng: random.Random) -> Filled:
    number = rng.randint(0, 30)
    return {"a": str(number)}, f"{number} is {'odd' if number % 2 else 'even'}."


def _repeat_list(rng: random.Random) -> Filled:
    text = ", ".join(some_words(rng, 2, 7))
    return {"text": text}, text


EXERCISES: dict[str, tuple[float, Callable[[random.Random], Filled]]] = {
    "copy": (9, _copy),
    "repeat_list": (1.5, _repeat_list),
    "spell": (5, _spell),
    "spell_with": (1.5, _spell_with),
    "unspell": (0.4, _unspell),
    "letters": (0.7, _letters),
    "words": (0.3, _words),
    "nth_letter": (1.5, _nth_letter),
    "nth_word": (2, _nth_word),
    "count": (3, _count),
    "count_to": (1.5, _count_to),
    "count_down": (1.2, _count_down),
    "count_by": (0.4, _count_by),
    "evens": (0.2, _evens),
    "upper": (1.5, _upper),
    "lower": (0.7, _lower),
    "reverse": (0.4, _reverse),
    "reverse_words": (0.4, _reverse_words),
    "sort": (0.8, _sort),
    "sort_down": (0.3, _sort_down),
    "sort_words": (0.2, _sort_words),
    "extreme": (1, _extreme),
    "twice": (1.5, _twice),
    "join": (0.7, _join),
    "replace": (0.5, _replace),
    "remove": (0.4, _remove),
    "json_list": (2.5, json_list),
    "json_object": (4.5, json_object),
    "json_key": (0.7, _json_key),
    "json_get": (1.2, json_get),
    "quote": (0.3, _quote),
    "brackets": (0.15, _brackets),
    "bullets": (0.3, _bullets),
    "first_letters": (0.2, _first_letters),
    "next": (0.7, _next),
    "plus": (1, _plus),
    "less": (0.8, _less),
    "larger": (0.7, _larger),
    "parity": (0.3, _parity),
}
NAMES = tuple(EXERCISES)
WEIGHTS = tuple(weight for weight, _ in EXERCISES.values())
