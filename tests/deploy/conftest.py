"""These tests install packages from the registries of the user's own configuration."""

from collections.abc import Iterator

import pytest

from tests.support.trust import trust_as_given


@pytest.fixture(scope="session", autouse=True)
def _certificates_of_the_machine() -> Iterator[None]:
    with trust_as_given():
        yield
