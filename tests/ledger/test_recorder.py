"""What waits to be kept word by word, over a real database."""

import pytest

from antiphon.domain.tenancy import Project, RecordingPolicy
from antiphon.ledger.recorder import StoreRecorder
from antiphon.store.base import ChangeAuthor
from antiphon.store.database import Database
from antiphon.store.request_log import SqlRecords
from antiphon.store.tenancy import SqlTenancy

NOW = 1_800_000_000


@pytest.fixture
def database(tmp_path):
    made = Database(f"sqlite:///{tmp_path}/antiphon.db")
    made.prepare()
    tenancy = SqlTenancy(made)
    tenancy.add_project(Project("one", "One", 5, recording=RecordingPolicy(30)), ChangeAuthor("operator", 5))
    yield made
    made.close()


def recorder(database):
    """One of a process that has learnt who keeps what."""
    made = StoreRecorder(SqlRecords(database), lambda: NOW)
    made.update_projects(SqlTenancy(database).load_directory())
    return made


def test_what_waits_in_any_process_is_erased_with_the_rest(database):
    records, processes = SqlRecords(database), [recorder(database) for _ in range(2)]
    for number, process in enumerate(processes):
        process.record(f"before{number}", "one", 1_000 * NOW, "{}", "{}")
    records.erase("one", 1_000 * NOW + 5, ChangeAuthor("ann", NOW))
    for number, process in enumerate(processes):
        process.record(f"running{number}", "one", 1_000 * NOW + 5, "{}", "{}")
        process.record(f"after{number}", "one", 1_000 * NOW + 6, "{}", "{}")
        process.start()
        process.stop(30)
    assert {each.id for each in records.load_page("one", 9)} == {"after0", "after1"}
