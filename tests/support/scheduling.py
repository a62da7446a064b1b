"""Which tests run one after the other in one worker of `make test`: those of a file, and those of a folder
whose files share servers or clients for the whole session."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

__all__ = ["pytest_xdist_make_scheduler"]

FOLDER = "tests/contract"
"""Each client library takes seconds to import."""
ALONE = "tests/contract/test_openapi.py"
"""It shares nothing, and takes as long as many of the others."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadFileScheduling | None":
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FolderScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return FOLDER if file != ALONE and file.startswith(f"{FOLDER}/test_") else file

    return FolderScheduling(config, log)
