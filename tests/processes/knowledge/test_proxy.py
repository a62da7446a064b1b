"""The border between an HTTP process and the knowledge process, made from the index's interface."""

import inspect

from antiphon.processes.knowledge import client, frames, server
from antiphon.processes.knowledge.frames import load_methods
from antiphon.retrieval.base import KnowledgeIndex


def test_every_operation_crosses_the_border_without_code_of_its_own() -> None:
    operations = {
        name for name, method in vars(KnowledgeIndex).items() if inspect.iscoroutinefunction(method)
    }
    assert {"list_tables", "search"} <= operations == set(load_methods())
    for module in (client, frames, server):
        assert not {name for name in operations if f"def {name}(" in inspect.getsource(module)}


def test_arguments_that_are_left_out_have_the_defaults_of_the_interface() -> None:
    codec = load_methods()["list_chunks"]
    assert codec.decode_arguments(codec.encode_arguments("p", "t", limit=7, with_vectors=True)) == {
        "project": "p",
        "table": "t",
        "document": None,
        "offset": 0,
        "limit": 7,
        "with_vectors": True,
    }
