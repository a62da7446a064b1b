"""The store gives each warning of a budget to one caller."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from antiphon.domain.limits import BudgetWarning, Limit, Measure, Subject, Window
from antiphon.domain.values import replace
from antiphon.store.database import Database
from antiphon.store.tenancy import WARNING_LIFETIME_S, SqlWarnings

LIMIT = Limit("limit_1", Subject.PROJECT, "p", Measure.COST, 10, 0, Window.DAY)
WARNING = BudgetWarning(LIMIT, 0.8, 8, 1_000, 900, 2_000)


def test_one_of_several_servers_gets_a_warning(database: Database, url: str) -> None:
    other = Database(url)
    stores = [SqlWarnings(database), SqlWarnings(other)] * 4
    with ThreadPoolExecutor(8) as threads:
        claimed = Counter(threads.map(lambda store: store.claim(WARNING), stores))
    other.close()
    assert claimed == {True: 1, False: 7}


def test_another_share_window_or_limit_is_another_warning(database: Database) -> None:
    store = SqlWarnings(database)
    others = (
        replace(WARNING, share=1.0),
        replace(WARNING, begin=2_000),
        replace(WARNING, limit=replace(LIMIT, id="limit_2")),
    )
    for warning in (WARNING, *others):
        assert store.claim(warning) and not store.claim(warning)


def test_old_warnings_are_forgotten(database: Database) -> None:
    store = SqlWarnings(database)
    assert store.claim(WARNING)
    assert store.claim(replace(WARNING, begin=3_000, at=1_001 + WARNING_LIFETIME_S))
    assert store.claim(WARNING)
