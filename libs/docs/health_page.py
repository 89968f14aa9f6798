"""docs/health.md: what is done about a device's errors, with the catalogue's own rows."""

from libs.common import error_catalogue as e
from libs.common.error_catalogue import Row
from libs.common.error_rows import catalogue
from libs.docs.markdown import code, page, prose, table

MEANS = {
    e.IGNORE: "it is recorded; nothing follows of it",
    e.RESTART_JOB: "the jobs that have the device end, the device stays in use",
    e.DRAIN_THEN_RESET: "nothing new is placed there; when the last job has ended, the device is reset",
    e.RESET: "the jobs that have the device end, then it is reset",
    e.REBOOT_NODE: "the jobs that have the device end, and it stays out of use until its machine was started again",
    e.REPLACE: "the jobs that have the device end, and it stays out of use until somebody has seen to it",
}


def health() -> str:
    ours, theirs = catalogue(), catalogue(e.PLATFORM_DESIGN)
    return page(
        "Health of devices",
        prose(e.__doc__),
        "## Verdicts",
        table(("verdict", "what it means"), [(code(verdict), MEANS[verdict]) for verdict in e.VERDICTS]),
        "An error whose cause is the application ends the job as its own failure. What hardware ends is tried again elsewhere, "
        "and uses up none of its retries.",
        "## The catalogue",
        f"Edition {code(ours.edition)}. Rows are data (`libs/common/error_catalogue.json`); of several that fit the first counts. "
        "The driver's recovery field and Xid 154 go before every row.",
        table(("vendor", "error", "what it is", "verdict", "cause", "only of"), [_row(row) for row in ours.rows]),
        "## The other catalogue",
        f"MUSTER_HEALTH_CATALOGUE={e.PLATFORM_DESIGN} puts these rows before the others "
        "([decision 18](decisions/0018-whose-table-of-errors.md)):",
        table(("vendor", "error", "what it is", "verdict", "cause", "only of"), [_row(row) for row in theirs.rows if row not in ours.rows]),
    )


def _row(row: Row) -> tuple[str, ...]:
    gates = [*row.products, *([f"drivers from {row.driver}"] if row.driver else [])]
    return row.vendor or "any", ", ".join(row.errors), row.what, code(row.verdict) or "open", row.cause, ", ".join(gates)
