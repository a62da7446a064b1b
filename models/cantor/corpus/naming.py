"""Names and descriptions of tools and parameters in many styles, so that they are read and not remembered."""

import random

from models.cantor.corpus.material import invented
from models.cantor.corpus.values import draw_value, said, type_of

BEFORE = ("the_", "my_", "user_", "input_", "new_", "target_", "in_", "p_", "arg_", "get_", "main_", "given_")
AFTER = ("_name", "_value", "_text", "_str", "_1", "_param", "_arg", "_field", "_input", "_id", "_no", "_in")
TOOL_BEFORE = ("api_", "do_", "tool_", "my_", "app_", "call_", "service_", "user_", "x_")
TOOL_AFTER = ("_tool", "_v2", "_now", "_api", "_fn", "_action", "_command", "_2", "_request")
MEANINGS = {  # what a parameter of a kind holds, as somebody would describe it
    "city": ("The city", "Name of the city", "City name", "Which city", "The place, a city"),
    "name": ("Name of the person", "Who", "First name", "The person", "Person's name"),
    "fullname": ("Name of the person", "The person's name", "Who it is", "Full name"),
    "email": ("Email address", "The address, like anna@mail.com", "E-mail of the person", "Address to use"),
    "path": ("Path of the file", "The file", "File name", "Which file", "File to work on"),
    "dir": ("The folder", "Path of the folder", "Directory", "Which directory"),
    "url": ("The web address", "URL", "Address of the page", "Link, with https"),
    "isodate": ("The date", "Day, like 2025-03-01", "Which day", "Date of it"),
    "clock": ("The time", "Time of day, like 14:30", "At what time", "Clock time"),
    "plain": ("The text", "What to say", "Text of it", "Message text"),
    "words": ("Short text", "Some words", "The words", "What it is about"),
    "quoted": ("The text", "Text to work on", "A text", "The words to use"),
    "room": ("The room", "Which room", "Name of the room", "Room of the house"),
    "country": ("The country", "Name of the country", "Which country"),
    "language": ("The language", "Name of the language", "Which language"),
    "currency": ("Currency code", "Currency, like EUR", "Three letters of the currency"),
    "unit": ("The unit", "Unit of measure", "Unit, like km"),
    "amount": ("How much", "The amount", "Sum of money", "Number"),
    "num": ("A number", "The number", "Value", "Number to use"),
    "int": ("A whole number", "The number", "How many", "Number of it", "Integer"),
    "dec": ("A number", "The value", "How much", "Number, may have decimals"),
    "bool": ("Whether to do so", "True or false", "Yes or no", "If set"),
    "enum": ("One of the listed values", "Which one", "The kind", "Choice"),
    "list": ("The list", "Several of them", "All of them", "List of strings"),
    "task": ("What to do", "The task", "Text of the task"),
    "ref": ("The number", "Its number, like AB-12", "Reference", "Id of it"),
    "digits": ("The digits", "Last digits", "Digits of it, as text"),
    "venue": ("Name of the place", "The place", "Which place", "Where"),
    "brand": ("Name of the company", "Who", "The name", "Which customer"),
    "dish": ("The dish", "What to eat", "Name of the dish", "The food"),
    "plant": ("The plant", "Which plant", "Name of the plant"),
    "medicine": ("The medicine", "Name of the medicine", "Which one"),
    "doctor": ("The doctor", "Name of the doctor", "Which doctor"),
    "petname": ("Name of the animal", "Which animal", "The pet"),
    "song": ("Title of the song", "The song", "Which song"),
    "artist": ("Who plays it", "The band or singer", "Name of the artist"),
    "film": ("Title of the film", "The film", "Which film"),
    "activity": ("The sport", "What was done", "Kind of sport"),
    "colour": ("The colour", "Name of the colour", "Which color"),
}


IMPERATIVES = frozenset(
    "add adjust answer apply approve archive arrange ask assign book borrow brew bring buy calculate"
    " call cancel capture change charge check choose clean close compose compute convert copy count"
    " create crop cut define delete dial dim divide draw drop encode enter erase evaluate exchange"
    " execute export extract feed fetch find flip follow forward generate get give have install invite"
    " list load lock log look make mark measure merge move multiply mute open order paint pause pay pick"
    " ping play plan post print publish push put query read record refund register reject remind remove"
    " rename rent reply request reschedule reserve reset resize restart restore retrieve return reverse"
    " roll rotate run save scan schedule search sell send set share show sign skip spell split start"
    " stop store subscribe subtract summarise switch take tell toss track transfer translate turn unlock"
    " update upload wake warm water write".split()
)
PURPOSES = ("Use this to {}.", "Use this tool to {}.", "A tool to {}.", "Lets the user {}.", "Lets you {}.")


def described(text: str, rng: random.Random) -> str:
    """A description that tells what to do; now and then what the tool does, or what it is for."""
    verb, _, rest = text.rstrip(".").partition(" ")
    if verb.lower() not in IMPERATIVES or not rest:
        return text
    roll = rng.random()
    if roll < 0.6:
        return text
    if roll < 0.8:
        return f"{third_person(verb)} {rest}."
    return rng.choice(PURPOSES).format(f"{verb.lower()} {rest}")


def third_person(verb: str) -> str:
    """The form of a verb that "it" takes."""
    if verb.endswith("y") and verb[-2] not in "aeo":
        return f"{verb[:-1]}ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s")


def parameter_name(alias: str, rng: random.Random) -> str:
    """A parameter's name: mostly as it is, else longer, in camel case or without meaning."""
    roll = rng.random()
    if roll < 0.88:
        return alias
    if roll < 0.91:
        return rng.choice(BEFORE) + alias
    if roll < 0.94:
        return alias + rng.choice(AFTER)
    if roll < 0.97:
        return camel(f"{alias}_{rng.choice(('name', 'value', 'text', 'input'))}")
    return invented(rng).lower() if rng.random() < 0.5 else rng.choice(("arg", "x", "p", "field", "v")) + "1"


def tool_name(alias: str, rng: random.Random) -> str:
    """A tool's name: mostly as it is, else with something before or after it, or in another case."""
    roll = rng.random()
    if roll < 0.86:
        return alias
    if roll < 0.89:
        return rng.choice(TOOL_BEFORE) + alias
    if roll < 0.92:
        return alias + rng.choice(TOOL_AFTER)
    return camel(alias) if roll < 0.97 else alias.replace("_", "-")


def camel(name: str) -> str:
    """`some_name` as `someName`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def schema_of(
    kind: str, name: str, label: str, rng: random.Random, *, optional: bool = False
) -> dict[str, object]:
    """A property of a schema; `label` is the plain name of what it holds."""
    schema = type_of(kind)
    described = 0.9 if name != label else 0.5
    if rng.random() > described:
        return schema
    plain = label.replace("_", " ")
    roll = rng.random()
    if roll < 0.45 and name == label:
        text = rng.choice((f"The {plain}", f"The {plain} to use", plain.capitalize(), f"Which {plain}"))
    elif roll < 0.8 or name != label:
        known = MEANINGS.get(kind.partition(":")[0], (f"The {plain}", plain.capitalize()))
        text = rng.choice(known) if name == label else f"The {plain}"
    else:
        text = f"{plain.capitalize()}, for example {said(draw_value(kind, rng), rng)}"
    if optional and rng.random() < 0.5:
        text = rng.choice((f"{text} (optional)", f"Optional. {text}", f"{text}, if given"))
    text += rng.choice(("", "", "."))
    if rng.random() < 0.2:
        return {"description": text, **schema}
    return {**schema, "description": text}
