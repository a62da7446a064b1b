"""Warns when a budget is nearly used: once for each share and window, by a log event, a metric and the
operator's webhook. The store decides which server and process sends the warning."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from antiphon.domain.context import Clock
from antiphon.domain.limits import BudgetWarning, Measure
from antiphon.domain.prices import format_money
from antiphon.errors import StoreUnavailable
from antiphon.limits.budget_watch import BudgetWatch
from antiphon.settings.tenancy import LimitsSettings
from antiphon.store.base import WarningStore
from antiphon.task_group import task_group
from antiphon.telemetry.exposition import Family, Totals
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import BUDGET_WARNINGS, WEBHOOKS

if TYPE_CHECKING:
    from antiphon.processes.webhook import WebhookSender

MAX_WAITING = 1_000
"""The most warnings that wait for the store. Further warnings are dropped."""

PAUSES_S: Sequence[float] = (0.5, 2.0, 10.0, 30.0)
"""Seconds before each further attempt if the store does not respond. The last pause repeats."""

AddTotals = Callable[[Totals], None]
"""Adds counts to the metrics of this server."""


class BudgetAlerts:
    """Sends the warnings of one limiter. `run` must run in a task."""

    def __init__(self, store: WarningStore, add_totals: AddTotals) -> None:
        self._store = store
        self._add_totals = add_totals
        self.webhook: WebhookSender | None = None
        self._waiting: asyncio.Queue[BudgetWarning] = asyncio.Queue(MAX_WAITING)

    def put(self, warning: BudgetWarning) -> None:
        """Queues a warning. Does not wait."""
        try:
            self._waiting.put_nowait(warning)
        except asyncio.QueueFull:
            record("budget_warning_dropped", logging.ERROR, limit=warning.limit.id, share=warning.share)

    def count_event(self, family: Family, labels: tuple[str, ...]) -> None:
        """Counts one event of a metric family."""
        self._add_totals(Totals.from_series([(family, {labels: 1})]))

    async def run(self) -> None:
        """Sends warnings until cancelled."""
        while True:
            warning = await self._waiting.get()
            if await self._claim(warning):
                self._send(warning)

    async def _claim(self, warning: BudgetWarning) -> bool:
        """Whether this process sends the warning. Waits while the store does not respond."""
        failures = 0
        while True:
            try:
                return await asyncio.to_thread(self._store.claim, warning)
            except StoreUnavailable:
                await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
                failures += 1

    def _send(self, warning: BudgetWarning) -> None:
        """Logs and counts a warning, and queues it for the webhook."""
        limit = warning.limit
        record(
            "budget_warning",
            logging.WARNING,
            limit=limit.id,
            subject=limit.subject,
            target=limit.target,
            measure=limit.measure,
            window=limit.window,
            share=warning.share,
            used=format_amount(limit.measure, warning.used),
            amount=format_amount(limit.measure, limit.amount),
        )
        self.count_event(
            BUDGET_WARNINGS, (limit.subject, limit.measure, str(limit.window), str(warning.share))
        )
        if self.webhook is not None:
            from antiphon.processes.webhook import WebhookMessage

            self.webhook.put(WebhookMessage(build_id(warning), encode_warning(warning)))


def build_id(warning: BudgetWarning) -> str:
    """Returns the id of a warning. Each attempt to deliver it sends the same id, so the receiver recognises a
    repetition."""
    return f"{warning.limit.id}.{warning.begin}.{warning.share}"


def format_amount(measure: Measure, amount: int) -> str:
    """Formats an amount for people: a cost in units of the currency, other amounts as they are."""
    return format_money(amount) if measure is Measure.COST else str(amount)


def encode_warning(warning: BudgetWarning) -> bytes:
    """Encodes a warning for the webhook."""
    limit = warning.limit
    used, amount = format_amount(limit.measure, warning.used), format_amount(limit.measure, limit.amount)
    percent = f"{warning.share * 100:g} %"
    text = (
        f"The {limit.subject} {limit.target} has reached {percent} of its budget: {used} of {amount} "
        f"{limit.measure.replace('_', ' ')} per {limit.window}"
    )
    data = {
        "limit": limit.id,
        "subject": limit.subject,
        "target": limit.target,
        "measure": limit.measure,
        "window": limit.window,
        "models": limit.models,
        "note": limit.note,
        "share": warning.share,
        "used": used,
        "amount": amount,
        "window_begins": _format_time(warning.begin),
        "window_ends": _format_time(warning.end),
    }
    message = {"type": "budget.warning", "timestamp": _format_time(warning.at), "text": text, "data": data}
    return json.dumps(message, ensure_ascii=False).encode()


def _format_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@asynccontextmanager
async def open_budget_watch(
    settings: LimitsSettings, store: WarningStore, clock: Clock, add_totals: AddTotals
) -> AsyncIterator[BudgetWatch | None]:
    """Yields the budget watch of a limiter, and sends its warnings until the block ends. Yields None if
    warnings are off. Raises SettingsError."""
    if not settings.warn_at:
        yield None
        return
    alerts = BudgetAlerts(store, add_totals)
    sender = None if settings.webhook is None else _build_sender(settings, settings.webhook, clock, alerts)
    alerts.webhook = sender
    async with task_group() as group:
        tasks = [group.create_task(alerts.run())]
        if sender is not None:
            tasks.append(group.create_task(sender.run()))
        try:
            yield BudgetWatch(settings.warn_at, alerts.put)
        finally:
            for task in tasks:
                task.cancel()


def _build_sender(settings: LimitsSettings, url: str, clock: Clock, alerts: BudgetAlerts) -> "WebhookSender":
    """Builds the sender of the webhook. Servers without a webhook do not import an HTTP client here. Raises
    SettingsError."""
    from antiphon.processes.webhook import WebhookSender

    def count_outcome(outcome: str) -> None:
        alerts.count_event(WEBHOOKS, (outcome,))

    return WebhookSender(url, settings.webhook_secret or "", clock, count_outcome, settings.webhook_private)
