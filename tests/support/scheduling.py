"""Which tests run one after the other in one worker of `make test`: those of a file, and those of a folder
whose files share servers or clients for the whole session."""

from importlib import import_module
from typing import Any

import pytest

__all__ = ["pytest_xdist_make_scheduler"]

FOLDER = "tests/contract"
"""Each client library takes seconds to import."""
ALONE = "tests/contract/test_openapi.py"
"""It shares nothing, and takes as long as many of the others."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    scheduling = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    scheduling._split_scope = choose_scope
    return scheduling


def choose_scope(test: str) -> str:
    """Tests of one scope run in one worker."""
    file = test.partition("::")[0]
    return FOLDER if file != ALONE and file.startswith(f"{FOLDER}/test_") else file
