"""What one process changes is told to the others, in each kind of database, also after it was away."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from queue import Empty, Queue

import pytest
import sqlalchemy as sa

from antiphon.domain.tenancy import Project
from antiphon.errors import StoreUnavailable
from antiphon.store.base import ChangeAuthor
from antiphon.store.database import Database
from antiphon.store.directory import COUNTER_INTERVAL_S, REVISION_INTERVAL_S, SqlFeed
from antiphon.store.ledger import SqlEntries
from antiphon.store.tenancy import SqlTenancy
from tests.support.ledger_doubles import ENTRY
from tests.support.waiting import wait_until

BY = ChangeAuthor("somebody", 1)
LATEST_S = 10.0


@contextmanager
def told(url: str) -> Iterator["Queue[int]"]:
    """What a feed tells, from the revision on that it begins with."""
    revisions: Queue[int] = Queue()
    with closing(Database(url)) as database:
        feed = SqlFeed(database)
        feed.start(revisions.put)
        try:
            yield revisions
        finally:
            feed.close()


def project(name: str) -> Project:
    return Project(f"project-{name}", name, 1)


def test_each_change_of_another_process_is_told(url, tenancy):
    with told(url) as revisions:
        assert revisions.get(timeout=LATEST_S) == tenancy.load_revision()
        for name in ("One", "Two", "Three"):
            made = tenancy.add_project(project(name), BY)
            assert revisions.get(timeout=LATEST_S) == made


def test_rows_of_the_ledger_are_told_to_nobody(url, database, tenancy):
    with told(url) as revisions:
        revisions.get(timeout=LATEST_S)
        SqlEntries(database).add([ENTRY])
        with pytest.raises(Empty):
            revisions.get(timeout=3 * COUNTER_INTERVAL_S)
        assert tenancy.add_project(project("One"), BY) == revisions.get(timeout=LATEST_S)


def test_what_could_not_be_learnt_is_told_again(database, tenancy):
    revisions: Queue[int] = Queue()
    failing = [True, True]

    def learn(revision: int) -> None:
        if failing:
            failing.pop()
            raise StoreUnavailable("the database does not answer")
        revisions.put(revision)

    feed = SqlFeed(database)
    feed.start(learn)
    try:
        assert revisions.get(timeout=LATEST_S) == tenancy.load_revision()
        assert not failing
    finally:
        feed.close()


def test_a_feed_that_is_closed_tells_nothing_more(database, tenancy):
    revisions: Queue[int] = Queue()
    feed = SqlFeed(database)
    feed.start(revisions.put)
    revisions.get(timeout=LATEST_S)
    feed.close()
    assert feed._thread is not None
    feed._thread.join(LATEST_S)  # `close` waits two seconds at most
    tenancy.add_project(project("One"), BY)
    with pytest.raises(Empty):
        revisions.get(timeout=2 * COUNTER_INTERVAL_S)


def test_a_word_that_is_lost_costs_no_more_than_a_moment(postgresql):
    with closing(Database(postgresql)) as database, told(postgresql) as revisions:
        with pytest.raises(Empty):  # no tables yet: it tries until they are there
            revisions.get(timeout=COUNTER_INTERVAL_S)
        database.prepare()
        first = revisions.get(timeout=LATEST_S)
        with database.writing() as connection:  # as a pooler between the two would: nobody is notified
            connection.execute(sa.text("UPDATE revision SET number = number + 1"))
        assert revisions.get(timeout=LATEST_S + REVISION_INTERVAL_S) == first + 1


def test_changes_while_the_database_was_away_are_told_later(restarted_cluster):
    url = restarted_cluster.database()
    with closing(Database(url)) as database, told(url) as revisions:
        database.prepare()
        first = revisions.get(timeout=LATEST_S)
        tenancy = SqlTenancy(database)
        for name in ("One", "Two"):
            restarted_cluster.stop()
            with pytest.raises(StoreUnavailable):
                tenancy.load_revision()
            restarted_cluster.start()
            made = tenancy.add_project(project(name), BY)
            while (heard := revisions.get(timeout=LATEST_S)) == first:
                pass  # it was back before the change was made
            assert heard == made == first + 1
            first = made


def test_a_removed_file_is_noticed_and_watched_when_back(tmp_path, caplog):
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        database.prepare()
        tenancy = SqlTenancy(database)
        with told(f"sqlite:///{path}") as revisions:
            first = revisions.get(timeout=LATEST_S)
            path.rename(aside)
            wait_until(lambda: "feed_lost" in caplog.messages, LATEST_S, "the feed's loss")
            aside.rename(path)
            assert revisions.get(timeout=LATEST_S) == first
            assert tenancy.add_project(project("One"), BY) == revisions.get(timeout=LATEST_S)


def test_a_loss_is_told_until_the_database_is_back(tmp_path):
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        database.prepare()
        feed = SqlFeed(database)
        feed.start(lambda _: None)
        try:
            assert (feed.is_lost, database.failure_count) == (False, 0)
            path.rename(aside)
            wait_until(lambda: feed.is_lost, LATEST_S, "the loss")
            assert database.failure_count > 0
            aside.rename(path)
            wait_until(lambda: not feed.is_lost, LATEST_S, "it is back")
        finally:
            feed.close()
