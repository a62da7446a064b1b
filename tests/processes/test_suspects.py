"""Media during whose encode an engine host has ended: which are refused, to which hosts, and for how long."""

from pathlib import Path

from antiphon.domain.values import replace
from antiphon.engines.base import EngineState
from antiphon.engines.host.child import ChildWatch
from antiphon.engines.host.control import ChildState, HostOrder, Status
from antiphon.processes.engine_hosts import MOST_SUSPECTS, EngineHost, EngineHosts
from antiphon.processes.ipc import from_line
from antiphon.settings.models import ModelSettings
from antiphon.settings.schema import Settings


class Watch(ChildWatch):
    """The watch of a host without a process. It notes what is refused to the host."""

    def __init__(self) -> None:
        async def start() -> None:
            raise OSError

        super().__init__("a host", start, lambda _, __: None)  # type: ignore[arg-type]  # it starts nothing
        self.refused: list[str] = []

    def send(self, line: bytes) -> None:
        order = from_line(line, HostOrder)
        assert order.refused is not None and not order.unload
        self.refused.append(order.refused.digest)


def open_hosts(folder: Path) -> tuple[EngineHosts, list[EngineHost], list[Watch]]:
    """Two hosts of one model, and a host of another."""
    models = (ModelSettings("owl", "no file", hosts=2), ModelSettings("bat", "no file"))
    hosts = EngineHosts(Settings(models=models), folder, "", lambda _: None, lambda: None, lambda _: None)
    watches = [Watch() for _ in range(3)]
    for host, watch in zip(hosts.list_assigned(), watches, strict=True):
        host.watch = watch
    return hosts, list(hosts.list_assigned()), watches


def end(hosts: EngineHosts, host: EngineHost, how: str, digest: str = "d") -> list[str]:
    """Ends a host during an encode. Returns what new hosts of its model refuse."""
    hosts._receive(host, Status(ChildState.ENCODING, digest=digest))
    host.watch.latest_end = how
    hosts._note_death(host)
    return [medium.digest for medium in hosts._list_refused(host.model.name)]


def test_a_fault_of_the_library_refuses_its_medium_to_all_hosts_of_the_model(tmp_path: Path) -> None:
    hosts, (one, _, other_model), watches = open_hosts(tmp_path)
    assert end(hosts, one, "signal SIGSEGV") == ["d"]
    assert [watch.refused for watch in watches] == [[], ["d"], []]
    assert hosts._list_refused(other_model.model.name) == ()


def test_a_host_that_was_loading_learns_of_a_refused_medium_when_it_is_ready(tmp_path: Path) -> None:
    hosts, (one, other, other_model), watches = open_hosts(tmp_path)
    end(hosts, one, "signal SIGSEGV")
    watches[1].refused.clear()  # it was loading, and missed the order
    for host in (other, other_model):
        hosts._update(host, EngineState.READY, None)
    assert [watch.refused for watch in watches] == [[], ["d"], []]


def test_a_medium_is_refused_when_its_host_is_killed_for_the_second_time(tmp_path: Path) -> None:
    hosts, (one, other, _), watches = open_hosts(tmp_path)
    assert end(hosts, one, "signal SIGKILL") == []
    assert end(hosts, other, "signal SIGKILL", "e") == []
    assert end(hosts, other, "signal SIGKILL") == ["d"]
    assert [watch.refused for watch in watches] == [["d"], [], []]


def test_a_host_that_ends_after_an_encode_blames_no_medium(tmp_path: Path) -> None:
    hosts, (one, *_), _ = open_hosts(tmp_path)
    hosts._receive(one, Status(ChildState.ENCODING, digest="d"))
    hosts._receive(one, Status(ChildState.ENCODING))
    assert end(hosts, one, "signal SIGABRT", "") == []


def test_refused_media_are_few_and_forgotten_in_time(tmp_path: Path) -> None:
    hosts, (one, *_), _ = open_hosts(tmp_path)
    for number in range(MOST_SUSPECTS + 10):
        refused = end(hosts, one, "signal SIGABRT", str(number))
    assert refused == [str(number) for number in range(10, MOST_SUSPECTS + 10)]
    hosts._suspects = [replace(suspect, until=0.0) for suspect in hosts._suspects]
    assert end(hosts, one, "signal SIGABRT") == ["d"]
