"""cantor's corpus: every document made by grammars in this folder, the same for the same seed.

`documents(seed, count)` is the whole interface. Nothing is read but the text files beside this module; that
the facts are those of docs/facts.md is asserted by a test.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from models.cantor.corpus import drills, knowledge, skills, stories
from models.cantor.corpus.blocks import Asker, Block, load_blocks, stated
from models.cantor.corpus.dialogue import PLAIN_SYSTEMS, Pair, recall, told_by_system
from models.cantor.corpus.exclude import Excluded
from models.cantor.corpus.grammar import HERE
from models.cantor.corpus.noise import dress, greet, reword
from models.cantor.corpus.obeying import obeyed
from models.cantor.corpus.results import result_of
from models.cantor.corpus.tools import (
    Kinds,
    Task,
    again,
    bare_task,
    call_text,
    composed_task,
    invent_task,
    make_task,
)
from models.cantor.recipe import LEGS, MIXTURES

NEWLINE = "\n"
OTHER_TOOLS = (0, 1, 1, 1, 1, 2, 2, 2, 2, 3)  # shown beside the first
CHOICES = (2, 2, 3, 3, 4, 5)  # tools of which one has to be chosen
REQUESTS = (1, 2, 3, 4, 5, 6)  # made of the tools that a document shows
GREETINGS = (
    "Hi. ",
    "Hello! ",
    "Please help me. ",
    "Now: ",
    "OK. ",
    "Next: ",
    "Thanks. ",
    "Hey, ",
    "A small task: ",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a dialogue."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Document:
    """A dialogue with the tools it shows; without turns, a plain text after a lead that is not learned.

    Of one that is `stuck` only the end of the last turn is learned: it had begun to repeat itself.
    """

    turns: tuple[Turn, ...] = ()
    tools: tuple[dict[str, object], ...] = ()
    text: str = ""
    lead: str = ""
    stuck: bool = False


class Corpus:
    """Draws documents; all randomness comes from the generator that is handed in."""

    def __init__(self) -> None:
        self.asker = Asker()
        self.facts = load_blocks(HERE / "facts.txt")
        self.added = [block for block in self.facts if block.added]
        self.talk = load_blocks(HERE / "talk.txt")
        self.kinds = Kinds()
        self.kinds_of_document: dict[str, Callable[[random.Random], Document]] = {
            "fact": self._one_fact,
            "added": self._one_added,
            "facts": self._some_facts,
            "talk": self._one_talk,
            "knowledge": self._one_knowledge,
            "skill": self._one_skill,
            "mixed": self._mixed,
            "recall": self._recall,
            "obeyed": self._obeyed,
            "tools": self._tool_call,
            "tool_drill": self._tool_drill,
            "choice": self._choice,
            "text": self._text,
            "long": self._long,
            "drill": self._drill,
            "stuck": self._stuck,
        }

    def draw(self, rng: random.Random, mixture: str) -> Document:
        """One document of a mixture, or of a kind by its name."""
        weights = MIXTURES.get(mixture, {mixture: 1.0})
        kind = rng.choices(list(weights), list(weights.values()))[0]
        return self.kinds_of_document[kind](rng)

    def fact(self, rng: random.Random) -> Pair:
        """A question about Antiphon as people type it, and its answer."""
        return self._asked(rng.choice(self.facts), rng)

    def _asked(self, block: Block, rng: random.Random) -> Pair:
        if rng.random() < 0.06:
            return stated(block.answers[0], rng)
        question, answer = self.asker.ask(block, rng)
        question = reword(question, rng) if rng.random() < 0.25 else question
        return dress(question, rng), answer

    def small_talk(self, rng: random.Random) -> Pair:
        """Small talk, identity or something unknown."""
        question, answer = self.asker.ask(rng.choice(self.talk), rng)
        return dress(question, rng, on_topic=False), answer

    def known(self, rng: random.Random) -> Pair:
        """A child's knowledge."""
        question, answer = knowledge.ask(rng)
        return (greet(question, rng) if rng.random() < 0.3 else question), answer

    def anything(self, rng: random.Random) -> Pair:
        """One pair of any kind."""
        return rng.choice((self.fact, self.fact, self.small_talk, self.known, skills.ask))(rng)

    def _dialogue(self, pairs: list[Pair], rng: random.Random, system: str = "") -> Document:
        if not system and rng.random() < 0.15:
            system = rng.choice(PLAIN_SYSTEMS)
        turns = [Turn("system", system)] if system else []
        for question, answer in pairs:
            padding = " " if rng.random() < 0.03 else ""
            turns += [Turn("user", padding + question), Turn("assistant", answer)]
        return Document(tuple(turns))

    def _one_fact(self, rng: random.Random) -> Document:
        return self._dialogue([self.fact(rng)], rng)

    def _one_added(self, rng: random.Random) -> Document:
        """One of the facts that are new since the sixth edition."""
        return self._dialogue([self._asked(rng.choice(self.added), rng)], rng)

    def _some_facts(self, rng: random.Random) -> Document:
        if rng.random() < 0.35:
            return self._dialogue([self._two_facts(rng)], rng)
        return self._dialogue([self.fact(rng) for _ in range(rng.randint(2, 4))], rng)

    def _two_facts(self, rng: random.Random) -> Pair:
        """Two questions in one message, and both answers."""
        (first, one), (second, two) = self.fact(rng), self.fact(rng)
        if rng.random() < 0.5:
            return f"{first} {second}", f"{one} {two}"
        joint = rng.choice((", and ", " and ", ", and also: ", "; ", " Also: ", " And "))
        return first.rstrip("?.!") + joint + second, f"{one} {two}"

    def _one_talk(self, rng: random.Random) -> Document:
        if rng.random() < 0.06:
            lead = rng.choice(
                (
                    "Tell me a story.",
                    "Tell me a short story.",
                    "Write a story.",
                    "Can you tell a story?",
                    "I want to hear a story.",
                    "Write a short story, please.",
                )
            )
            return self._dialogue([(lead, stories.story(rng))], rng)
        return self._dialogue([self.small_talk(rng)], rng)

    def _one_knowledge(self, rng: random.Random) -> Document:
        return self._dialogue([self.known(rng)], rng)

    def _stuck(self, rng: random.Random) -> Document:
        """An answer that repeats what it has just said, and ends there."""
        if rng.random() < 0.2:
            question, answer = "Tell me a story.", stories.story(rng)
        else:
            question, answer = self.anything(rng)
        words = answer.split(" ")
        said = words[: rng.randint(1, len(words))]
        again = said[-rng.choice((1, 1, 1, 2, 3, 4, 6, 9)) :]
        times = rng.choice((3, 4)) if len(again) == 1 else rng.choice((1, 2) if len(again) == 2 else (1,))
        joint = rng.choice((" ", " ", NEWLINE)) if NEWLINE in answer else " "
        text = joint.join([" ".join(said), *[" ".join(again)] * times])
        return replace(self._dialogue([(question, text)], rng), stuck=True)

    def _one_skill(self, rng: random.Random) -> Document:
        question, answer = skills.ask(rng)
        if rng.random() < 0.1:
            question = rng.choice(GREETINGS) + question
        return self._dialogue([(question, answer)], rng)

    def _mixed(self, rng: random.Random) -> Document:
        return self._dialogue([self.anything(rng) for _ in range(rng.randint(2, 5))], rng)

    def _recall(self, rng: random.Random) -> Document:
        if rng.random() < 0.15:
            system, pairs = told_by_system(rng, self.anything)
            return self._dialogue(pairs, rng, system)
        return self._dialogue(recall(rng, self.anything), rng)

    def _obeyed(self, rng: random.Random) -> Document:
        system, pairs = obeyed(rng, rng.choice((self.fact, self.small_talk, self.known)))
        if len(pairs) == 1 and rng.random() < 0.12:  # the user asks for it, in the same message
            question, answer = pairs[0]
            return self._dialogue([(f"{system}{rng.choice((' ', NEWLINE))}{question}", answer)], rng)
        return self._dialogue(pairs, rng, system)

    def _drill(self, rng: random.Random) -> Document:
        lead, text = drills.drill(rng)
        return Document(text=text, lead=lead)

    def _long(self, rng: random.Random) -> Document:
        pairs = recall(rng, self.anything)
        filler = [self.anything(rng) for _ in range(rng.randint(10, 40))]
        return self._dialogue([*pairs[:1], *filler, *pairs[1:]], rng)

    def _task(self, rng: random.Random) -> Task:
        roll = rng.random()
        if roll < 0.7:
            return make_task(rng.choice(self.kinds.all), rng)
        return composed_task(rng) if roll < 0.93 else invent_task(rng)

    def _distractor(self, task: Task, rng: random.Random) -> Task:
        """A tool that is not asked for, often one that is much like the tool that is."""
        if rng.random() < 0.35:
            return self._task(rng)
        if task.kind is not None:
            return make_task(self.kinds.near(task.kind, rng), rng)
        return composed_task(rng, task.made)

    def _tool_call(self, rng: random.Random) -> Document:
        first = self._task(rng)
        shown = {str(first.function["name"]): first}
        for _ in range(rng.choice(OTHER_TOOLS)):
            other = self._distractor(first, rng)
            shown.setdefault(str(other.function["name"]), other)
        tasks = list(shown.values())
        called = self._asked_for(tasks, rng)
        rng.shuffle(tasks)
        tools = tuple(task.function for task in tasks)
        system = rng.choice(PLAIN_SYSTEMS) if rng.random() < 0.15 else ""
        turns = [Turn("system", system)] if system else []
        if rng.random() < 0.06:
            turns += self._said_in_text(rng)
        for task in called:
            request = greet(task.request, rng) if rng.random() < 0.15 else task.request
            turns += [Turn("user", request), Turn("assistant", call_text(task))]
            if rng.random() < 0.12:
                result, answer = result_of(rng)
                turns += [Turn("tool", result), Turn("assistant", answer)]
        if rng.random() < 0.04:
            turns += self._said_in_text(rng)
        return Document(tuple(turns), tools)

    def _asked_for(self, tasks: list[Task], rng: random.Random) -> list[Task]:
        """Requests for any of the tools, in any order, often several for one: which it is has to be read."""
        called = [rng.choice(tasks) for _ in range(rng.choice(REQUESTS[: 2 * len(tasks)]))]
        first = {str(task.function["name"]): at for at, task in reversed(list(enumerate(called)))}
        made = (
            task if first[str(task.function["name"])] == at else again(task, rng)
            for at, task in enumerate(called)
        )
        return [task for task in made if task is not None]

    def _said_in_text(self, rng: random.Random) -> list[Turn]:
        """Turns that need no tool, though some are shown."""
        question, answer = rng.choice((self.small_talk, self.fact))(rng)
        return [Turn("user", question), Turn("assistant", answer)]

    def _tool_drill(self, rng: random.Random) -> Document:
        """Calls of tools that exist nowhere: nothing but copying helps."""
        tasks = [invent_task(rng) for _ in range(rng.choice((1, 2, 2, 3)))]
        called = list({str(task.function["name"]): task for task in tasks}.values())
        turns = [
            turn
            for task in called
            for turn in (Turn("user", task.request), Turn("assistant", call_text(task)))
        ]
        tools = [task.function for task in called]
        rng.shuffle(tools)
        return Document(tuple(turns), tuple(tools))

    def _choice(self, rng: random.Random) -> Document:
        """Many requests for tools that take nothing: only which one it is has to be found."""
        shown: dict[str, Task] = {}
        last: Task | None = None
        for _ in range(rng.choice(CHOICES)):
            last = bare_task(rng, last.made if last is not None and rng.random() < 0.4 else None)
            shown.setdefault(str(last.function["name"]), last)
        tasks = list(shown.values())
        made = [again(rng.choice(tasks), rng) for _ in range(rng.randint(3, 8))]
        turns = [
            turn
            for task in made
            if task is not None
            for turn in (Turn("user", task.request), Turn("assistant", call_text(task)))
        ]
        rng.shuffle(tasks)
        return Document(tuple(turns), tuple(task.function for task in tasks))

    def _text(self, rng: random.Random) -> Document:
        roll = rng.random()
        if roll < 0.45:
            return Document(text=stories.story(rng))
        if roll < 0.6:
            return Document(text=stories.description(rng))
        return Document(text=stories.about([block.answers[0] for block in self.facts], rng))


def documents(
    seed: int, count: int, excluded: Excluded | None = None, *, mixture: str = "all"
) -> Iterator[Document]:
    """The first `count` documents of a seed and a mixture; one that holds excluded words is drawn again."""
    corpus, rng = Corpus(), random.Random(seed)
    excluded = Excluded.load() if excluded is None else excluded
    made = 0
    while made < count:
        document = corpus.draw(rng, mixture)
        if not excluded.touches(document.lead + document.text, *(turn.content for turn in document.turns)):
            made += 1
            yield document


def training(at_most: int | None = None) -> Iterator[Document]:
    """Every document that training may see, or so many of each leg."""
    for leg in LEGS:
        count = leg.documents if at_most is None else min(leg.documents, at_most)
        yield from documents(leg.seed, count, mixture=leg.mixture)
