"""Plain short English: little stories and descriptions by grammar, and the facts as running text."""

import random
from collections.abc import Sequence

from models.cantor.corpus.grammar import draw, load_words, parse
from models.cantor.corpus.knowledge import article

WORDS = load_words()
OPENINGS = parse(
    "(Once upon a time|Once|One day|Long ago|One fine morning|Last summer|In a small village|Every morning)"
)
GOALS = (
    ("find a friend", "made a new friend"),
    ("see the sea", "saw the sea"),
    ("learn to swim", "learned to swim"),
    ("bake a cake", "baked a fine cake"),
    ("build a boat", "built a small boat"),
    ("sing a song", "sang a song"),
    ("climb the hill", "stood on top of the hill"),
    ("cross the river", "crossed the river"),
    ("read a book", "read the whole book"),
    ("plant a tree", "planted a tree"),
    ("find a key", "found the key"),
    ("visit the market", "visited the market"),
    ("paint a picture", "painted a picture"),
    ("catch a fish", "caught a big fish"),
    ("write a letter", "wrote a long letter"),
)
TROUBLES = (
    "it began to rain",
    "the door was closed",
    "the way was long",
    "it was very dark",
    "the wind was strong",
    "nobody was there",
    "the bridge was broken",
    "it was too cold",
    "the bag was empty",
)
HELPERS = (
    "An old {job}",
    "A kind {animal}",
    "A small {animal}",
    "A clever {job}",
    "The {job} of the village",
)
HELPS = (
    "came and helped",
    "showed the way",
    "gave {them} a warm {food}",
    "brought a {object}",
    "had a good idea",
    "told {them} what to do",
    "lent {them} a {object}",
)
ENDS = (
    "They laughed and went home.",
    "In the evening they ate {food} together.",
    "That night {name} slept well.",
    "From that day on they were friends.",
    "{name} was very happy.",
    "And they lived happily ever after.",
    "It was a good day.",
    "The next day they did it again.",
)


def story(rng: random.Random) -> str:
    """A story of five to seven sentences about somebody who wants something."""
    she = rng.random() < 0.5
    who, them = ("She", "her") if she else ("He", "him")
    slots = {
        kind: rng.choice(WORDS[kind]) for kind in ("animal", "job", "food", "object", "place", "adjective")
    }
    slots |= {"name": rng.choice(WORDS["name"]), "them": them}
    goal, success = rng.choice(GOALS)
    being = rng.choice((slots["animal"], slots["job"], "girl" if she else "boy"))
    lines = [
        f"{draw(OPENINGS, rng, {})} there was {article(slots['adjective'])} {being} called {slots['name']}.",
        rng.choice(
            (
                f"{slots['name']} lived near a {slots['place']}.",
                f"{who} lived in a small house.",
                f"{who} had a {rng.choice(WORDS['colour'])} {slots['object']}.",
            )
        ),
        rng.choice(
            (
                f"One day {slots['name']} wanted to {goal}.",
                f"{who} wanted to {goal}.",
                f'"I want to {goal}," said {slots["name"]}.',
            )
        ),
        rng.choice(
            (
                f"But {rng.choice(TROUBLES)}.",
                f"At first {rng.choice(TROUBLES)}.",
                f"{slots['name']} tried, but {rng.choice(TROUBLES)}.",
            )
        ),
        f"{rng.choice(HELPERS)} {rng.choice(HELPS)}.".format(**slots),
        rng.choice(
            (
                f"So {slots['name']} {success}.",
                f"At last {slots['name']} {success}.",
                f"Then {slots['name']} {success}.",
            )
        ),
        rng.choice(ENDS).format(**slots),
    ]
    if rng.random() < 0.3:
        del lines[1]
    return " ".join(lines)


def description(rng: random.Random) -> str:
    """Two to four sentences about a place."""
    place, season = rng.choice(WORDS["place"]), rng.choice(("spring", "summer", "autumn", "winter"))
    lines = [
        f"The {place} is {rng.choice(WORDS['adjective'])} and {rng.choice(WORDS['adjective'])}.",
        f"In {season} there is {rng.choice(WORDS['nature'])} everywhere.",
        f"You can see a {rng.choice(WORDS['animal'])} near the {rng.choice(WORDS['nature'])}.",
        f"People come here to {rng.choice(WORDS['verb'])} and {rng.choice(WORDS['verb'])}.",
        f"The {rng.choice(WORDS['object'])} is {rng.choice(WORDS['colour'])}.",
        f"{rng.choice(WORDS['name'])} likes the {place} most in the morning.",
    ]
    rng.shuffle(lines)
    return " ".join(lines[: rng.randint(2, 4)])


def about(facts: Sequence[str], rng: random.Random) -> str:
    """A run of facts, as a page about Antiphon would have them."""
    start = rng.randrange(len(facts))
    run = facts[start : start + rng.randint(1, 4)]
    lead = rng.choice(("", "", "About Antiphon. ", "From the documentation: "))
    return lead + " ".join(run)
