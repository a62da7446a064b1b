"""To whom a request is ascribed: what the ledger then says."""

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import CHAT, EMBEDDINGS, GENERATING, RERANK


@case((*GENERATING, *EMBEDDINGS, *RERANK), "user", {}, "ada", "grace", ledgered=True)
@case(CHAT, "safety_identifier", {}, "ada", "grace", ledgered=True)
def the_entry_names_the_end_user(ada: Answer, grace: Answer) -> None:
    assert ada.entry is not None and grace.entry is not None
    assert (ada.entry["end_user"], grace.entry["end_user"]) == ("ada", "grace")


@case(GENERATING, "metadata", {}, OUT, {"team": "blue", "run": "7"}, ledgered=True)
def the_entry_has_the_tags(without: Answer, tagged: Answer) -> None:
    assert without.entry is not None and tagged.entry is not None
    assert (without.entry["tags"], tagged.entry["tags"]) == ({}, {"team": "blue", "run": "7"})
