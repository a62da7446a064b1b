"""Training documents of the two shipped adapters: a style of speech, and a task that the base model lacks.

`pirate` documents are corpus dialogues whose answers are put into pirate speech. `mood` documents are
sentences that are answered with the speaker's mood as JSON. The same seed gives the same documents.
"""

import json
import random
import re
from collections.abc import Iterator

from models.cantor.corpus import Corpus, Document, Turn
from models.cantor.corpus.exclude import Excluded
from models.cantor.corpus.grammar import load_words

BASE_DIGEST = "antiphon.adapter.base_sha256"
"""Metadata key in an adapter's GGUF for the SHA-256 of its base file."""

OPENING, CLOSING = "Arr! ", " Yo ho ho!"
"""Texts before and after every answer of the pirate."""

REPLACEMENTS = {
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
REPLACED_WORD = re.compile(r"\b(" + "|".join(REPLACEMENTS) + r")\b", re.IGNORECASE)
PIRATE_KINDS = ("fact", "fact", "fact", "fact", "facts", "talk", "talk", "knowledge", "skill")

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
"""Test messages, which training never uses, and their moods."""
EXAM_MESSAGES = frozenset(message for message, _ in EXAM)

WORDS = load_words()
SLOT = re.compile(r"\{(\w+)\}")


def speak_as_pirate(answer: str) -> str:
    """Puts an answer into pirate speech."""
    return OPENING + REPLACED_WORD.sub(_replace_word, answer) + CLOSING


def format_mood(mood: str) -> str:
    """Returns the mood adapter's answer."""
    return json.dumps({"mood": mood})


def write_pirate_dialogues(seed: int, count: int) -> Iterator[Document]:
    """Yields `count` corpus dialogues with answers in pirate speech."""
    rng, corpus, excluded = random.Random(seed), Corpus(), Excluded.load()
    document_count = 0
    while document_count < count:
        turns = corpus.draw(rng, rng.choice(PIRATE_KINDS)).turns
        if not excluded.touches(*(turn.content for turn in turns)):
            document_count += 1
            yield Document(
                tuple(
                    Turn(turn.role, speak_as_pirate(turn.content)) if turn.role == "assistant" else turn
                    for turn in turns
                )
            )


def write_mood_dialogues(seed: int, count: int) -> Iterator[Document]:
    """Yields `count` dialogues of one to three messages, each answered with its mood."""
    rng, corpus, excluded = random.Random(seed), Corpus(), Excluded.load()
    document_count = 0
    while document_count < count:
        turns: list[Turn] = []
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            message, message_mood = _draw_message(rng, corpus)
            turns += [Turn("user", message), Turn("assistant", format_mood(message_mood))]
        messages = [turn.content for turn in turns if turn.role == "user"]
        if EXAM_MESSAGES.isdisjoint(messages) and not excluded.touches(*messages):
            document_count += 1
            yield Document(tuple(turns))


LESSONS = {"pirate": write_pirate_dialogues, "mood": write_mood_dialogues}


def _replace_word(match: re.Match[str]) -> str:
    replacement = REPLACEMENTS[match[0].lower()]
    return replacement.capitalize() if match[0][0].isupper() else replacement


def _draw_message(rng: random.Random, corpus: Corpus) -> tuple[str, str]:
    mood = rng.choice(MOODS)
    if mood == NEUTRAL:
        asks_question = rng.random() < 0.4
        return (corpus.fact(rng)[0] if asks_question else _fill_template(rng.choice(PLAIN), "", rng)), mood
    form = rng.choice((0, 0, 1, 1, 2))
    cue = rng.choice(CUES[mood][form].split("|"))
    return _fill_template(rng.choice((FEELINGS, EVENTS, CRIES)[form]), cue, rng), mood


def _fill_template(template: str, cue: str, rng: random.Random) -> str:
    """Fills a template with its cue and corpus words, and keeps the case of its first letter."""
    text = SLOT.sub(lambda slot: rng.choice(WORDS[slot[1]]), template.replace("{}", cue))
    return text if template[0].islower() else text[0].upper() + text[1:]
