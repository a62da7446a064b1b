"""Doubles and conformance kits that ship with Antiphon, for its own tests and for authors of engines.

They need no test framework: the kits are async functions that raise AssertionError with the sentence of the
broken rule.
"""

from antiphon.testing.embedding_kit import check_embedding_engine
from antiphon.testing.engine_kit import check_engine
from antiphon.testing.rules import flatten
from antiphon.testing.scripted_engine import (
    EmbeddingScript,
    FakeClock,
    ScriptedAnswer,
    ScriptedEmbeddingEngine,
    ScriptedEngine,
)
from antiphon.testing.scripted_token_engine import Failure, Hold, Script, ScriptedTokenEngine, scripted_info
from antiphon.testing.token_kit import check_adapters, check_token_engine
from antiphon.testing.toy_model import build_vocabulary

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
