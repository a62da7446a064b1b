"""Doubles and conformance kits, for the tests of Antiphon and for authors of engines.

They are a distribution of their own, `antiphon-testing`. They need no test framework: the kits are async
functions that raise AssertionError with the sentence of the broken rule.
"""

from antiphon_testing.embedding_kit import check_embedding_engine
from antiphon_testing.engine_kit import check_engine
from antiphon_testing.rules import flatten
from antiphon_testing.scripted_engine import (
    EmbeddingScript,
    FakeClock,
    ScriptedAnswer,
    ScriptedEmbeddingEngine,
    ScriptedEngine,
)
from antiphon_testing.scripted_token_engine import Failure, Hold, Script, ScriptedTokenEngine, scripted_info
from antiphon_testing.token_kit import check_adapters, check_token_engine
from antiphon_testing.toy_model import build_vocabulary

__all__ = [
    "EmbeddingScript",
    "Failure",
    "FakeClock",
    "Hold",
    "Script",
    "ScriptedAnswer",
    "ScriptedEmbeddingEngine",
    "ScriptedEngine",
    "ScriptedTokenEngine",
    "build_vocabulary",
    "check_adapters",
    "check_embedding_engine",
    "check_engine",
    "check_token_engine",
    "flatten",
    "scripted_info",
]
