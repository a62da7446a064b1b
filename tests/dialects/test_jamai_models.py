"""The choice of a model by its capabilities, and what a profile says of them."""

import msgspec
import pytest

from antiphon.dialects.jamai.models import build_id, build_model, find_capable, list_capabilities
from antiphon.dialects.services import ModelEntry
from antiphon.domain.models import Profile
from antiphon.domain.request import EmbeddingFacts, Pooling
from antiphon.domain.values import replace
from antiphon.errors import ModelNotFound

CHAT = Profile("llama", None, None, None, 2048, 100, chat=True, exact=True, sequences=4, engine="x")
SEES = replace(CHAT, modalities=("text", "image"), reasoning=True)
VECTORS = replace(CHAT, chat=False, embedding=EmbeddingFacts(4, Pooling.MEAN))
RANKS = replace(CHAT, chat=False, embedding=EmbeddingFacts(1, Pooling.RANK))


def entry(name: str, profile: Profile | None = CHAT, state: str = "ready") -> ModelEntry:
    return ModelEntry(name, 7, state, profile)


@pytest.mark.parametrize(
    ("profile", "capabilities"),
    [
        (CHAT, {"chat", "tool"}),
        (replace(CHAT, refused=("tools",)), {"chat"}),
        (SEES, {"chat", "tool", "image", "reasoning"}),
        (replace(CHAT, chat=False), {"completion"}),
        (VECTORS, {"embed"}),
        (RANKS, {"rerank"}),
    ],
)
def test_a_profile_tells_the_capabilities(profile: Profile, capabilities: set[str]):
    assert list_capabilities(profile) == capabilities


@pytest.mark.parametrize(
    ("entries", "needs", "chosen"),
    [
        ([entry("a"), entry("b")], {"chat"}, "a"),
        ([entry("a"), entry("b", SEES)], {"chat", "image"}, "b"),
        ([entry("a", state="failed"), entry("b")], {"chat"}, "b"),
        ([entry("a/*"), entry("b")], {"chat"}, "b"),
        ([entry("a", None, "parked"), entry("b")], {"chat"}, "b"),
        ([entry("a", VECTORS), entry("b", None, "parked")], {"chat"}, "b"),
        ([entry("a", None, "failed"), entry("b", None, "restarting")], {"chat"}, "b"),
    ],
)
def test_the_first_capable_model_that_can_run_is_chosen(
    entries: list[ModelEntry], needs: set[str], chosen: str
):
    assert find_capable(entries, frozenset(needs)) == chosen


@pytest.mark.parametrize("entries", [[], [entry("a", VECTORS)], [entry("a", state="failed")], [entry("a/*")]])
def test_no_capable_model_is_an_error_with_the_capabilities(entries: list[ModelEntry]):
    with pytest.raises(ModelNotFound, match="the capabilities chat, tool; GET /jamai/api"):
        find_capable(entries, frozenset({"tool", "chat"}))


def test_a_model_without_a_profile_says_nothing_of_itself():
    shown = msgspec.to_builtins(build_model(entry("org/a", None)))
    assert shown.keys() == {"id", "name", "owned_by", "created_at", "updated_at"}
    assert (shown["id"], build_id("a")) == ("org/a", "antiphon/a")
