"""Checks of `antiphon doctor` for a server with keys: database, pepper, spool, limits and single sign-on.
Import it only where keys are on. The checks create nothing."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from antiphon.auth.secrets import PEPPER_FILE, load_pepper, parse_pepper
from antiphon.cli.bootstrap import MARK, find_spool, find_store_url
from antiphon.cli.doctor.findings import Finding, FindingSeverity, report_ok, report_problem, to_finding
from antiphon.cli.serve_options import find_home
from antiphon.errors import LimitsUnavailable, SettingsError, StoreRefused, StoreUnavailable
from antiphon.settings.schema import Settings
from antiphon.settings.tenancy import LimitsSettings
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy

MEGABYTE = 1e6
REACHED_S = 2
"""Seconds in which a remote database or Redis must answer."""


def check_tenancy(settings: Settings, environ: Mapping[str, str], user_home: Path) -> Iterator[Finding]:
    """Checks the database, its pepper, the spool, the limits and single sign-on."""
    home = find_home(environ, user_home)
    try:
        with closing(Database(find_store_url(settings.keys.store, home), connect_s=REACHED_S)) as database:
            yield from _check_store(database, settings, home)
    except (StoreRefused, StoreUnavailable) as error:
        yield to_finding("store-unusable", error)
    yield _check_spool(Path(find_spool(settings.ledger.spool, home)), settings.ledger.spool_bytes)
    if settings.limits.url is not None:
        yield _check_limits(settings.limits, settings.limits.url)
    if settings.oidc.issuer is not None and find_spec("jwt") is None:
        yield report_problem("sign-on-unusable", "single sign-on needs a library that is not installed")


def _check_store(database: Database, settings: Settings, home: Path) -> Iterator[Finding]:
    file = database.file
    if file is not None and not file.exists():
        place = _find_existing(file.parent)
        if not _is_writable(place):
            yield report_problem(
                "store-unusable", f"the database {file} cannot be made: {place} cannot be written"
            )
        else:
            yield report_ok("store", f"{file} is not there yet; the first start makes it")
        return
    standing = database.schema_state()
    if standing.newer:
        yield report_problem("store-newer", f"{database.shown} was made by a later version of Antiphon")
    elif standing.found is None:
        yield report_ok("store", f"{database.shown} is empty; the first start makes its tables")
    elif standing.pending:
        message = (
            f"{database.shown} is at revision {standing.found}, and this version wants {standing.wanted}"
        )
        yield report_problem("store-outdated", message)
    else:
        yield report_ok("store", f"{database.shown} answers, at revision {standing.found}")
        yield _check_pepper(database, settings, home)


def _check_pepper(database: Database, settings: Settings, home: Path) -> Finding:
    """Checks that the local pepper is the one of the database's keys."""
    mark, configured = SqlTenancy(database).mark(MARK), settings.keys.pepper
    where = "ANTIPHON_PEPPER" if configured else str(home / PEPPER_FILE)
    if mark is None and not configured and not (home / PEPPER_FILE).exists():
        return report_ok("pepper", f"{where} is not there yet; the first start makes it")
    try:
        pepper = parse_pepper(configured) if configured else load_pepper(home, make=False)
    except StoreRefused as error:
        return to_finding("pepper-unusable", error)
    if mark not in (None, pepper.mark):
        return report_problem("pepper-unusable", f"{where} is not what this database's keys were made with")
    return report_ok("pepper", f"{where} is the one of the database's keys")


def _check_spool(spool: Path, most: int) -> Finding:
    """Checks the directory in which usage is written before it is in the database."""
    place = _find_existing(spool)
    if not place.is_dir() or not _is_writable(place):
        return report_problem(
            "spool-unusable", f"the ledger's spool {spool} cannot be written: {place} cannot"
        )
    free = shutil.disk_usage(place).free
    message = f"{spool}: {free / MEGABYTE:,.0f} MB free; it may take {most / MEGABYTE:,.0f}"
    return (
        report_problem("spool-short", message, FindingSeverity.ADVICE)
        if free < most
        else report_ok("spool", message)
    )


def _check_limits(limits: LimitsSettings, url: str) -> Finding:
    """Checks that the Redis which counts limits for several servers answers."""
    try:
        from antiphon.limits.redis.limiter import check_redis
    except ModuleNotFoundError:
        missing = SettingsError(
            "limits.url needs the client of Redis; install it: pip install 'antiphon[redis]'"
        )
        return to_finding("limits-unusable", missing)
    try:
        return report_ok("limits", check_redis(url, REACHED_S))
    except SettingsError as error:
        return to_finding("limits-unusable", error)
    except LimitsUnavailable as error:
        passes = limits.unavailable == "open"  # then each process counts alone, and serves requests
        return report_problem(
            "limits-unusable", error.message, FindingSeverity.ADVICE if passes else FindingSeverity.BROKEN
        )


def _find_existing(path: Path) -> Path:
    """Returns the path, or its nearest parent that exists."""
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _is_writable(place: Path) -> bool:
    return os.access(place, os.W_OK | os.X_OK)
