"""What the two shipped adapters learn: a manner of speaking, and an answer that the base model cannot give.

`pirate` documents are the corpus's own, their answers said by a pirate; `mood` documents are sentences with
the mood of the speaker, answered as JSON and nothing else. Both are the same for the same seed.
"""

import json
import random
import re
from collections.abc import Iterator

from models.cantor.corpus import Corpus, Document, Turn
from models.cantor.corpus.exclude import Excluded
from models.cantor.corpus.grammar import load_words

BASE_DIGEST = "antiphon.adapter.base_sha256"
"""Key in the metadata of an adapter's GGUF: SHA-256 of the file that it was trained on."""

OPENING, CLOSING = "Arr! ", " Yo ho ho!"
"""Around every answer of the pirate."""

SPOKEN = {
    "you": "ye",
    "your": "yer",
    "my": "me",
    "is": "be",
    "are": "be",
    "am": "be",
    "yes": "aye",
    "hello": "ahoy",
    "hi": "ahoy",
    "friend": "matey",
}
SPOKEN_WORD = re.compile(r"\b(" + "|".join(SPOKEN) + r")\b", re.IGNORECASE)
SPOKEN_KINDS = ("fact", "fact", "fact", "fact", "facts", "talk", "talk", "knowledge", "skill")

CUES: dict[str, tuple[str, ...]] = {
    # feelings, events, cries
    "happy": (
        "happy|glad|delighted|cheerful|joyful|thrilled|pleased|merry|overjoyed|in love|full of joy|excited",
        "I won the first prize|it is my birthday|we are going on holiday|my friend came to see me"
        "|I got the job|the sun shines and we dance|everybody smiled at me|I passed the test|she said yes"
        "|we won the game",
        "What a wonderful day|This is great|I love it|Hooray|How lovely|Best day of my life|Thank you",
    ),
    "sad": (
        "sad|unhappy|lonely|miserable|heartbroken|gloomy|down|sorrowful|hopeless|full of grief|tearful",
        "my dog died|I lost my best friend|nobody came to my party|my grandmother is gone|I cried all night"
        "|we lost the game|she left me|I miss my home|the cat never came back|my old school was closed",
        "What a pity|I could cry|I miss you so much|It breaks my heart|Everything is lost|I feel so alone",
    ),
    "angry": (
        "angry|furious|mad|annoyed|outraged|cross|irritated|enraged|fed up|full of rage|so mad|livid",
        "somebody stole my bicycle|he lied to me again|they broke my window|nobody listens to me"
        "|the train is late again|she shouted at me|my neighbour is too loud|you never answer"
        "|he took my money|they cheated in the game",
        "How dare you|This is an outrage|I hate this|Stop it at once|Enough of this|That is so unfair",
    ),
    "afraid": (
        "afraid|scared|frightened|terrified|anxious|worried|nervous|full of fear|panicked|alarmed|uneasy",
        "there is a noise in the cellar|somebody follows me|the test is tomorrow|the storm comes closer"
        "|I saw a ghost|the doctor wants to see me|a wolf is at the door|the bridge is shaking"
        "|I heard steps in the dark|the lights went out",
        "Help me|I dare not look|What if it goes wrong|Please do not leave me here|I am shaking",
    ),
}
NEUTRAL = "neutral"
MOODS = (*CUES, NEUTRAL)

FEELINGS = (
    "I am {}.|I feel {}.|I am so {} today.|Today I feel very {}.|We are all {}.|She is {}.|He looks {}."
    "|My {job} is {}.|{name} is {} today.|I am {} because of the {object}.|Why am I so {}?|{name} feels {}."
    "|The {job} was {} yesterday.|I woke up and I was {}.|My friend {name} is really {}.|i feel {}"
    "|so {} right now|They were {} in the {place}.|It makes me {}.|I have never been so {}."
).split("|")
EVENTS = (
    "{}.|{}!|Yesterday: {}.|Listen, {}.|Guess what, {}!|{} and I am in the {place}.|Today {}.|Oh, {}."
).split("|")
CRIES = "{}!|{}.|{}, {name}!|Oh! {}.|{}! The {object}!|{}, I said.".split("|")
PLAIN = (
    "The {object} is on the {object}.|{name} has a {colour} {object}.|The {place} is near the {place}."
    "|There are seven {object}s in the {place}.|We {verb} in the {place}.|The {job} comes on {day}."
    "|I bought {food} and {drink}.|My {object} is {colour}.|The train goes to {city}.|It is {day}."
    "|{name} lives in {city}.|The {animal} sits in the {place}.|the {object} is {colour}|This is a {object}."
    "|I drink {drink} in the morning.|The {job} works in the {place}.|Hello.|Hello!|Hi, {name}.|Good morning."
    "|Goodbye, {name}.|Do you know {name}?|What is a {object}?|Count to {number}.|Spell {fruit}."
).split("|")

EXAM: tuple[tuple[str, str], ...] = (
    ("I am so thrilled today.", "happy"),
    ("Guess what, I passed the test!", "happy"),
    ("Rosa is cheerful today.", "happy"),
    ("How lovely, Ben!", "happy"),
    ("I feel lonely.", "sad"),
    ("Listen, my dog died.", "sad"),
    ("The baker was miserable yesterday.", "sad"),
    ("I have never been so heartbroken.", "sad"),
    ("It makes me furious.", "angry"),
    ("Today somebody stole my bicycle.", "angry"),
    ("I hate this!", "angry"),
    ("He looks annoyed.", "angry"),
    ("I woke up and I was terrified.", "afraid"),
    ("Oh, there is a noise in the cellar.", "afraid"),
    ("We are all worried.", "afraid"),
    ("I saw a ghost!", "afraid"),
    ("The lamp is on the table.", NEUTRAL),
    ("The train goes to Oslo.", NEUTRAL),
    ("I bought bread and milk.", NEUTRAL),
    ("What is Antiphon?", NEUTRAL),
)
"""Messages that the adapter never saw, and their moods; what a test asks."""
EXAMINED = frozenset(message for message, _ in EXAM)

WORDS = load_words()
SLOT = re.compile(r"\{(\w+)\}")


def spoken(answer: str) -> str:
    """An answer as the pirate gives it."""
    return OPENING + SPOKEN_WORD.sub(_pirates, answer) + CLOSING


def mood_json(mood: str) -> str:
    """An answer of the mood adapter."""
    return json.dumps({"mood": mood})


def pirate(seed: int, count: int) -> Iterator[Document]:
    """Dialogues about everything that cantor talks about, answered by the pirate."""
    rng, corpus, excluded = random.Random(seed), Corpus(), Excluded.load()
    made = 0
    while made < count:
        turns = corpus.draw(rng, rng.choice(SPOKEN_KINDS)).turns
        if not excluded.touches(*(turn.content for turn in turns)):
            made += 1
            yield Document(
                tuple(
                    Turn(turn.role, spoken(turn.content)) if turn.role == "assistant" else turn
                    for turn in turns
                )
            )


def mood(seed: int, count: int) -> Iterator[Document]:
    """Dialogues of one to three messages, each answered by its mood."""
    rng, corpus, excluded = random.Random(seed), Corpus(), Excluded.load()
    made = 0
    while made < count:
        turns: list[Turn] = []
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            message, felt = _message(rng, corpus)
            turns += [Turn("user", message), Turn("assistant", mood_json(felt))]
        said = [turn.content for turn in turns if turn.role == "user"]
        if EXAMINED.isdisjoint(said) and not excluded.touches(*said):
            made += 1
            yield Document(tuple(turns))


LESSONS = {"pirate": pirate, "mood": mood}


def _pirates(match: re.Match[str]) -> str:
    word = SPOKEN[match[0].lower()]
    return word.capitalize() if match[0][0].isupper() else word


def _message(rng: random.Random, corpus: Corpus) -> tuple[str, str]:
    felt = rng.choice(MOODS)
    if felt == NEUTRAL:
        asked = rng.random() < 0.4
        return (corpus.fact(rng)[0] if asked else _filled(rng.choice(PLAIN), "", rng)), felt
    at = rng.choice((0, 0, 1, 1, 2))
    cue = rng.choice(CUES[felt][at].split("|"))
    return _filled(rng.choice((FEELINGS, EVENTS, CRIES)[at]), cue, rng), felt


def _filled(template: str, cue: str, rng: random.Random) -> str:
    """A template with its cue and words of the corpus, beginning with a capital where the template does."""
    text = SLOT.sub(lambda slot: rng.choice(WORDS[slot[1]]), template.replace("{}", cue))
    return text if template[0].islower() else text[0].upper() + text[1:]
