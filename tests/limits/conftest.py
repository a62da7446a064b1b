"""Every limiter by a clock that the tests own."""

from tests.redis_server import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
