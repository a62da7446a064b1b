"""Which replica a sequence goes to."""

from collections import Counter
from random import Random

from antiphon.engines.base import PromptTokens, TokenRequest
from antiphon.engines.host.ray.engine import build_routing_key
from antiphon.engines.host.ray.replica_table import (
    BLOCK,
    MAX_BLOCKS,
    Candidate,
    PrefixIndex,
    ReplicaTable,
    RoutingKey,
    build_prefix_keys,
    choose_replica,
)

LONG = tuple(range(4 * BLOCK))
PLACES = 4


def idle(*names: str) -> list[Candidate]:
    return [Candidate(name) for name in names]


def choose(key: RoutingKey, candidates: list[Candidate], index: PrefixIndex | None = None, seed=0) -> str:
    return choose_replica(key, candidates, index or PrefixIndex(), PLACES, Random(seed)).name


def test_keys_are_those_of_whole_blocks():
    assert [len(build_prefix_keys(range(count), "", "")) for count in (0, BLOCK - 1, BLOCK, 65)] == [
        0,
        0,
        1,
        2,
    ]
    assert len(build_prefix_keys(range(BLOCK * (MAX_BLOCKS + 3)), "", "")) == MAX_BLOCKS


def test_a_key_depends_on_all_before_it_the_adapter_and_the_salt():
    plain = build_prefix_keys(LONG, "", "")
    assert build_prefix_keys((*LONG[:-1], 7), "", "")[:3] == plain[:3]
    changed = [
        build_prefix_keys((7, *LONG[1:]), "", ""),
        build_prefix_keys(LONG, "digest", ""),
        build_prefix_keys(LONG, "", "salt"),
    ]
    for keys in changed:
        assert not set(keys) & set(plain)


def test_an_id_that_no_vocabulary_has_makes_no_key():
    assert build_prefix_keys((2**40, *LONG), "", "") == ()
    assert len(build_prefix_keys((-1, *LONG), "", "")) == 4


def test_the_longest_prefix_decides():
    keys, index = build_prefix_keys(LONG, "", ""), PrefixIndex()
    index.add(keys[:1], "a")
    index.add(keys[1:3], "b")
    assert choose(RoutingKey(keys), idle("a", "b", "c"), index) == "b"
    assert choose(RoutingKey(keys), idle("a", "c"), index) == "a"


def test_a_full_replica_loses_what_its_prefix_would_save():
    keys, index = build_prefix_keys(LONG, "", ""), PrefixIndex()
    index.add(keys, "a")
    with_places = [Candidate("a", PLACES - 1), Candidate("b", 0)]
    hardly_more = [Candidate("a", 12), Candidate("b", 8)]
    far_more = [Candidate("a", 13), Candidate("b", 8)]
    assert [choose(RoutingKey(keys), each, index) for each in (with_places, hardly_more, far_more)] == [
        "a",
        "a",
        "b",
    ]


def test_choices_of_one_prompt_stay_together_at_any_load():
    index = PrefixIndex()
    index.add((b"group",), "a")
    loaded = [Candidate("a", 90), Candidate("b", 0)]
    assert choose(RoutingKey(group=b"group"), loaded, index) == "a"
    assert choose(RoutingKey(group=b"other"), loaded, index) == "b"


def test_a_replica_that_holds_the_adapter_is_preferred():
    candidates = [Candidate("a"), Candidate("b", 2, frozenset({"d"})), Candidate("c", 1, frozenset({"d"}))]
    assert choose(RoutingKey(adapter="d"), candidates) == "c"
    assert {choose(RoutingKey(adapter="e"), candidates, seed=seed) for seed in range(20)} == {"a", "c"}


def test_without_a_prefix_the_less_loaded_of_two_is_chosen():
    candidates = [Candidate("a", 9), Candidate("b", 1), Candidate("c", 5)]
    chosen = Counter(choose(RoutingKey(), candidates, seed=seed) for seed in range(300))
    assert chosen["a"] == 0 and 150 < chosen["b"] < 250 and 50 < chosen["c"] < 150


def test_ties_are_broken_at_random():
    chosen = Counter(choose(RoutingKey(), idle("a", "b", "c"), seed=seed) for seed in range(300))
    assert min(chosen.values()) > 60 and len(chosen) == 3


def test_old_prefixes_are_forgotten():
    index = PrefixIndex(max_keys=2)
    index.add((b"1", b"2"), "a")
    index.add((b"1", b"3"), "b")
    assert [index.find((key,), ("a", "b")) for key in (b"1", b"2", b"3")] == ["b", None, "b"]


def test_a_table_counts_what_runs_where():
    table = ReplicaTable(random=Random(1))
    table.set_replicas(["a", "b"])
    key = RoutingKey(build_prefix_keys(LONG, "", ""))
    table.open(1, key)
    first = table.choose(1, {"a": 0, "b": 0}, {})
    table.assign(1, first)
    table.open(2, key)
    assert table.choose(2, {"a": 0, "b": 0}, {}) == first
    assert table.loads == {first: 1} and table.assigned == {1: first}
    table.close(1)
    table.close(1)
    assert table.loads == {} and table.assigned == {} and table.keys.keys() == {2}


def test_a_choice_counts_before_the_call_is_sent():
    table = ReplicaTable(random=Random(1))
    key = RoutingKey(build_prefix_keys(LONG, "", ""))
    chosen = set()
    for number in range(20):
        table.open(number, key)
        chosen.add(table.choose(number, {"a": 0, "b": 0}, {}))
    assert len(chosen) == 1


def test_a_change_of_the_replicas_is_told_once():
    told: list[tuple[str, ...]] = []
    table = ReplicaTable()
    table.on_change = lambda: told.append(table.names)
    for names in (["a"], ["a"], ["a", "b"], ["b", "a"], []):
        table.set_replicas(names)
    assert told == [("a",), ("a", "b"), ()]


def test_a_prompt_that_is_scored_uses_no_prefix():
    request = TokenRequest(PromptTokens(LONG), 1, prompt_logprobs=0, adapter="d", group="g", actor="x")
    assert build_routing_key(request) == RoutingKey((), "d", b"group x g")
    plain = TokenRequest(PromptTokens(LONG), 1, cache_salt="s")
    assert build_routing_key(plain) == RoutingKey(build_prefix_keys(LONG, "", "s"))
