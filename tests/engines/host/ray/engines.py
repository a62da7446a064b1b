"""Token engines that replicas of these tests hold."""

from antiphon.engines.base import TokenRequest
from antiphon_testing import Script, ScriptedTokenEngine, scripted_info

MEETING = 2.0
"""Seconds in which siblings arrive at a replica, which takes 8 ms on an idle machine. The scripted engine
shares a prompt only while a sibling is there, and sequences of the kit are over in less than that."""


def brief() -> ScriptedTokenEngine:
    """An engine of four sequences, for the conformance kit."""

    def choose_script(request: TokenRequest) -> Script:
        return Script(prefill=0.001 if request.group is None else MEETING)

    return ScriptedTokenEngine(choose_script, info=scripted_info(context_length=256, sequences=4))


def endless() -> ScriptedTokenEngine:
    """Four sequences that make a token each hundredth of a second and never end."""
    script = Script(text="on and on ", endless=True, pace=0.01)
    return ScriptedTokenEngine(script, info=scripted_info(context_length=10_000_000, sequences=4))
