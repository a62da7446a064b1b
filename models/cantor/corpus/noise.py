"""How people really type: greetings, fillers, other words, typing slips. Changes questions, never answers."""

import random

from models.cantor.corpus.grammar import HERE, lines_of

ASIDE_BEFORE, ASIDE_AFTER = 0.06, 0.05  # shares of requests with a sentence beside them
ASIDES = lines_of(HERE / "asides.txt")
BEFORE, AFTER = (tuple(line[2:] for line in ASIDES if line[0] == mark) for mark in "<>")
OPENERS = (
    "Hi! ",
    "Hello. ",
    "Hey, ",
    "Good morning. ",
    "Quick question: ",
    "One question: ",
    "Please: ",
    "So, ",
    "Well, ",
    "Hi there. ",
    "I have a question. ",
    "Excuse me, ",
    "Just curious: ",
    "Sorry, ",
    "Thanks. ",
    "OK, ",
    "Now, ",
    "Hello cantor. ",
    "Hi cantor, ",
    "Dear cantor, ",
    "Another thing: ",
    "Question: ",
    "Right. ",
    "For my notes: ",
    "I am new here. ",
    "A friend asked me: ",
    "About Antiphon: ",
    "Regarding Antiphon: ",
    "In Antiphon, ",
    "With Antiphon, ",
    "When I use Antiphon, ",
    "For a beginner: ",
    "Be so kind: ",
    "Help! ",
)
CLOSERS = (
    " Thanks!",
    " Thank you.",
    " Please.",
    " Please be brief.",
    " I forgot.",
    " I am curious.",
    " Any idea?",
    " Thanks in advance.",
    " In one sentence, please.",
    " I could not find it.",
    " Just wondering.",
    " Help me.",
    " It is for my notes.",
    " My boss wants to know.",
    " I cannot remember.",
    " Cheers.",
)
MIDDLES = (
    "exactly",
    "actually",
    "really",
    "please",
    "then",
    "again",
    "normally",
    "usually",
    "in Antiphon",
    "with Antiphon",
    "for me",
    "here",
    "in practice",
    "today",
    "in general",
    "in short",
)


def load_synonyms() -> dict[str, tuple[str, ...]]:
    """Words that may stand for a word, by that word."""
    rows = (line.split(" = ") for line in lines_of(HERE / "synonyms.txt"))
    return {left: tuple(right.split("|")) for left, right in rows}


SYNONYMS = load_synonyms()


def greet(request: str, rng: random.Random) -> str:
    """A request with a word before or after it, its own words untouched (they may be values)."""
    opener = rng.choice(OPENERS)
    if (rng.random() < 0.6 or request[-1] not in ".?!") and "Antiphon" not in opener:
        return opener + request
    return request + rng.choice(CLOSERS[:3]) if request[-1] in ".?!" else request


def aside(request: str, rng: random.Random) -> str:
    """A request, now and then with a sentence beside it that has nothing to do with it."""
    roll = rng.random()
    if roll < ASIDE_BEFORE:
        return f"{rng.choice(BEFORE)} {request}"
    if roll < ASIDE_BEFORE + ASIDE_AFTER and request[-1] in ".?!" and not set(':"') & set(request):
        return f"{request} {rng.choice(AFTER)}"
    return request


def dress(question: str, rng: random.Random, *, on_topic: bool = True) -> str:
    """A question as somebody might type it; about a third stay as they are."""
    if rng.random() < 0.30:
        return question
    if rng.random() < 0.14:
        question = _insert(question, rng, on_topic)
    if rng.random() < 0.22:
        question = _drop_word(question, rng)
    if rng.random() < 0.20:
        opener = rng.choice(OPENERS)
        if on_topic or "Antiphon" not in opener:
            question = opener + _lower_first(question, opener)
    if rng.random() < 0.12:
        question += rng.choice(CLOSERS)
    if rng.random() < 0.18:
        question = question.lower()
    if rng.random() < 0.10:
        question = question.rstrip("?.!")
    if rng.random() < 0.06:
        question = _slip(question, rng)
    return question


def reword(question: str, rng: random.Random) -> str:
    """One or two words exchanged for others of the same meaning, where there are any."""
    words = question.split(" ")
    known = [at for at, word in enumerate(words) if word.rstrip("?.,!").lower() in SYNONYMS]
    for at in rng.sample(known, min(len(known), rng.choice((1, 1, 2)))):
        bare = words[at].rstrip("?.,!")
        new = rng.choice(SYNONYMS[bare.lower()])
        new = new[0].upper() + new[1:] if bare[0].isupper() and at == 0 else new
        words[at] = new + words[at][len(bare) :]
    return " ".join(words)


def _lower_first(question: str, opener: str) -> str:
    keeps = opener.rstrip().endswith((".", "!")) or question.split(maxsplit=1)[0].isupper()
    return question if keeps else question[0].lower() + question[1:]


def _insert(question: str, rng: random.Random, on_topic: bool) -> str:
    word = rng.choice(MIDDLES)
    if "Antiphon" in word and not on_topic:
        return question
    bare = question.rstrip("?.!")
    return f"{bare} {word}{question[len(bare) :]}"


def _drop_word(question: str, rng: random.Random) -> str:
    """Some words fewer, so that what is left has to tell what is meant."""
    words = question.split()
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        if len(words) < 5:
            break
        del words[rng.randrange(1, len(words) - 1)]
    return " ".join(words)


def _slip(question: str, rng: random.Random) -> str:
    """One typing slip inside the text: a letter lost, doubled or swapped with the next."""
    at = rng.randrange(max(1, len(question) - 2))
    if not question[at : at + 2].isalpha():
        return question
    kind = rng.randrange(3)
    middle = {
        0: question[at + 1],
        1: question[at] * 2 + question[at + 1],
        2: question[at + 1] + question[at],
    }[kind]
    return question[:at] + middle + question[at + 2 :]
