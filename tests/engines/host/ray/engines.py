"""Token engines that replicas of these tests hold."""

from antiphon.testing import Script, ScriptedTokenEngine, scripted_info


def brief() -> ScriptedTokenEngine:
    """An engine of four sequences, for the conformance kit."""
    return ScriptedTokenEngine(Script(prefill=0.001), info=scripted_info(context_length=256, sequences=4))


def endless() -> ScriptedTokenEngine:
    """Four sequences that make a token each hundredth of a second and never end."""
    script = Script(text="on and on ", endless=True, pace=0.01)
    return ScriptedTokenEngine(script, info=scripted_info(context_length=10_000_000, sequences=4))
