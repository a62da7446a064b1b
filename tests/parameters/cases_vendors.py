"""What only vendors' models use."""

import json
from typing import Any

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import CHAT, CHATS, GENERATING


def told(answer: Answer) -> Any:
    """What reached the vendor."""
    return json.loads(answer.text)


@case(CHAT, "verbosity", {}, OUT, "low", hosted=True)
@case(GENERATING, "service_tier", {}, OUT, "flex", hosted=True)
@case(GENERATING, "prompt_cache_key", {}, OUT, "k", hosted=True)
def the_vendor_is_told(without: Answer, sent: Answer) -> None:
    assert told(without)["hosted"] == [None, None, None]
    assert [each for each in told(sent)["hosted"] if each is not None] in (["low"], ["flex"], ["k"])


@case(CHATS, "service_tier", {}, "auto", "flex")
@case(CHAT, "verbosity", {}, "medium", "low")
def a_model_of_this_server_refuses_it(usual: Answer, other: Answer) -> None:
    assert usual.status == 200 and other.status == 400 and "is not supported" in other.refusal


@case(GENERATING, "prompt_cache_key", {}, OUT, "k", recorded=True)
def a_model_of_this_server_names_it(without: Answer, named: Answer) -> None:
    assert named.headers.get("x-antiphon-ignored") == "prompt_cache_key"
    assert "x-antiphon-ignored" not in without.headers
