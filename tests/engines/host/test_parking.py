"""What an HTTP process knows of a model that is loaded on request."""

from antiphon.engines.base import EngineState
from antiphon.engines.host.control import EngineStateNotice
from antiphon.engines.host.parking import Parking
from antiphon.errors import ModelNotLoaded


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_calls_ask_for_the_load_once_until_there_is_news() -> None:
    asked: list[str] = []
    parking = Parking("m", lambda: asked.append("m"))
    assert str(parking.state) == "parked"
    for _ in range(3):
        assert not isinstance(parking.build_absence_error(), ModelNotLoaded)
    assert asked == ["m"]
    parking.note(EngineStateNotice("m", EngineState.LOADING))
    parking.request_load()
    assert (asked, str(parking.state)) == (["m"], "loading")
    parking.note(EngineStateNotice("m", EngineState.READY))
    assert str(parking.state) == "loading"  # not connected yet
    parking.note(EngineStateNotice("m", EngineState.PARKED))
    parking.request_load()
    assert asked == ["m", "m"]


def test_a_refusal_holds_for_its_time() -> None:
    asked: list[str] = []
    clock = Clock()
    parking = Parking("m", lambda: asked.append("m"), clock)
    parking.note(EngineStateNotice("m", EngineState.PARKED, "no memory", 5.0))
    refused = parking.build_absence_error()
    assert isinstance(refused, ModelNotLoaded)
    assert (refused.message, refused.retry_after, asked) == ("no memory", 5.0, [])
    clock.now += 5.0
    assert not isinstance(parking.build_absence_error(), ModelNotLoaded)
    assert asked == ["m"]
