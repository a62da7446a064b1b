"""ANTIPHON_TEST_REQUIRE=all, seen from outside."""

import pytest

SUITE = """
    import pytest
    def test_passes(): ...
    @pytest.mark.skip(reason="no such machine")
    def test_marked(): ...
    def test_called(): pytest.skip("no such library")
    @pytest.fixture
    def missing(): pytest.skip("no such fixture")
    def test_given(missing): ...
    @pytest.mark.xfail(reason="known")
    def test_known(): raise ValueError
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("ANTIPHON_TEST_REQUIRE", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # loading them takes a second
    pytester.makeconftest("from tests.support.no_skips import *")
    pytester.makepyfile(
        test_some=SUITE, test_whole="import pytest; pytest.skip('no', allow_module_level=True)"
    )
    return pytester


def test_skips_are_skips_where_nothing_is_required(suite: pytest.Pytester):
    suite.runpytest().assert_outcomes(passed=1, skipped=4, xfailed=1)


def test_every_kind_of_skip_fails_where_all_is_required(suite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTIPHON_TEST_REQUIRE", "all")
    some = suite.runpytest("test_some.py")
    some.assert_outcomes(passed=1, failed=1, errors=2, xfailed=1)
    some.stdout.fnmatch_lines(["*ANTIPHON_TEST_REQUIRE=all forbids this: *no such machine*"])
    suite.runpytest("test_whole.py").assert_outcomes(errors=1)
