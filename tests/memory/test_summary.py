"""Summaries: where a conversation is cut, what finds a summary, and the texts."""

import hypothesis
from hypothesis import strategies as st

from antiphon.domain.memory import KeptSummary
from antiphon.domain.messages import Message, Role, TextContent, ToolCall
from antiphon.domain.values import replace
from antiphon.memory.summaries import (
    ProcessSummaries,
    StoredSummaries,
    build_writer_messages,
    choose_summary_tokens,
    digest_beginnings,
    insert_summary,
    list_cuts,
)
from antiphon.memory.turns import (
    OMITTED,
    PromptBudget,
    choose_budget,
    count_leading,
    cut_middle,
    pair_results,
    write_transcript,
)
from antiphon_testing.scripted_engine import FakeClock
from tests.memory.conversations import conversations, talk


@hypothesis.given(conversations())
def test_every_cut_keeps_leading_messages_and_results(messages):
    callers = pair_results(messages)
    for cut in list_cuts(messages):
        kept = insert_summary(messages, cut, "what was said")
        leading = count_leading(messages)
        assert kept[:leading] == messages[:leading]
        assert kept[leading + 1 :] == messages[cut + 1 :]
        assert kept[leading].text.endswith(messages[cut].text) and "what was said" in kept[leading].text
        assert kept[leading].role is Role.USER
        assert all(call >= cut for result, call in callers.items() if result >= cut)


@hypothesis.given(conversations(), st.integers(0, 30))
def test_a_digest_tells_what_it_covers(messages, changed_at):
    cuts = list_cuts(messages)
    digests = digest_beginnings(messages, cuts, "m")
    assert len(set(digests)) == len(cuts)
    assert set(digests).isdisjoint(digest_beginnings(messages, cuts, "other"))
    if changed_at >= len(messages):
        return
    other = list(messages)
    other[changed_at] = replace(other[changed_at], text=other[changed_at].text + "!")
    same = [a == b for a, b in zip(digests, digest_beginnings(other, cuts, "m"), strict=True)]
    is_leading = changed_at < count_leading(messages)
    assert same == [is_leading or cut <= changed_at for cut in cuts]


def test_a_longer_conversation_has_the_digests_of_a_shorter():
    long, short = talk("suauauau"), talk("suauau")
    assert digest_beginnings(long, list_cuts(long))[:2] == digest_beginnings(short, list_cuts(short))


def test_parts_of_the_first_message_follow_the_summary():
    message = Message(Role.USER, "look", content=(TextContent("look"),))
    (first,) = insert_summary((*talk("ua"), message), 2, "earlier")
    added = TextContent(first.text.removesuffix("look"))
    assert first.content == (added, *message.content) and "earlier" in added.text


def test_the_transcript_has_calls_and_results():
    messages = (
        Message(Role.USER, "Weather?"),
        Message(Role.ASSISTANT, "", tool_calls=(ToolCall("1", "weather", '{"in": "Bern"}'),)),
        Message(Role.TOOL, "rain", tool_call_id="1"),
    )
    expected = 'User: Weather?\n\nAssistant: \n(calls weather with {"in": "Bern"})\n\nTool: rain'
    assert write_transcript(messages) == expected


def test_the_writer_gets_the_summary_so_far():
    _, asked = build_writer_messages("They met.", "User: hi")
    assert asked.text.index("They met.") < asked.text.index("User: hi")
    assert "Summary so far" not in build_writer_messages(None, "User: hi")[1].text


@hypothesis.given(st.text(max_size=40), st.integers(0, 40))
def test_a_cut_text_keeps_both_ends(text, length):
    short = cut_middle(text, length)
    if len(text) <= length:
        assert short == text
        return
    head, _, tail = short.rpartition(OMITTED)
    assert text.startswith(head) and text.endswith(tail)
    assert len(head) + len(tail) == length


def test_a_summary_takes_a_quarter_of_a_small_budget():
    assert [choose_summary_tokens(budget) for budget in (1, 100, 10_000)] == [1, 25, 512]


def test_a_budget_is_at_most_what_the_context_leaves():
    for requested, context_length, answer, tokens, is_raisable in (
        (600, 2048, 0, 600, True),
        (600, None, 5000, 600, True),
        (None, 2048, 0, 1024, True),
        (None, 2048, 1500, 548, False),
        (10**9, 2048, 0, 2047, False),
        (600, 2048, 4096, 0, False),
    ):
        assert choose_budget(requested, context_length, answer) == PromptBudget(tokens, is_raisable)
    assert choose_budget(None, None, 9) is None


class FullStore:
    """A store with a summary for every digest."""

    def find(self, project, digests, now):
        return dict.fromkeys(digests, "kept before")

    def add(self, summary, most):
        raise AssertionError("nothing is kept")


async def test_an_operator_who_keeps_none_gets_none_of_before():
    cache = StoredSummaries(FullStore(), 0, 1, FakeClock())
    await cache.save("one", "a", "text", 0)
    assert await cache.find("one", ["a"]) == {}
    assert await StoredSummaries(FullStore(), 1, 1, FakeClock()).find("one", ["a"]) == {"a": "kept before"}


class ListStore:
    """A store that lists what it is to keep."""

    def __init__(self):
        self.kept = []

    def find(self, project, digests, now):
        return {}

    def add(self, summary, most):
        self.kept.append((summary, most))


async def test_the_settings_bound_what_the_database_keeps():
    clock, store = FakeClock(wall=1_000.0), ListStore()
    await StoredSummaries(store, 7, 2, clock).save("one", "a", "text", 5)
    assert store.kept == [(KeptSummary("a", "one", 5, 1_000 + 2 * 86_400, "text"), 7)]


async def test_the_cache_in_memory_is_bounded_and_expires():
    clock = FakeClock()
    cache = ProcessSummaries(2, 1, clock)
    for digest in "abc":
        await cache.save("one", digest, digest, 0)
        await cache.find("one", ["a"])
    assert await cache.find("one", ["a", "b", "c"]) == {"a": "a", "c": "c"}
    assert await cache.find("two", ["a"]) == {}
    clock.advance(86_401)
    assert await cache.find("one", ["a", "c"]) == {}
