"""Cases of the verbs about use, cost, idle GPUs and uploads, for `test_cli_contract.py`."""

from typing import Final

from tests.integration.cli_cases import Case, case

USE_CASES: Final[dict[str, tuple[Case, ...]]] = {
    "usage": (
        case("usage --since 1h", "GPU SECONDS"),
        case("usage --csv --by model", "payer,tenant,user,key,model,kind"),
        case("usage --by node", "by: 'node' is not known", 1),
        case("usage --by day,month", "several periods", 1),
        case("usage --json --by gpu", '"fleet"'),
        case("usage --tenant default --user ada --csv", "payer,tenant,user,key,model,kind"),
    ),
    "history": (
        case("history --since 1h", "PEAK MEMORY"),
        case("history --csv", "job,attempt,tenant,user,model,gpus"),
        case("history --by user,day --csv", "payer,tenant,user,key,model,kind"),
        case("history --by user --user ada --csv", "payer,tenant,user,key,model,kind"),
    ),
    "price list": (
        case("price", "CURRENCY", before=(("price", "set", "l4", "1", "--currency", "EUR"),)),
        case("price list", "l4"),
    ),
    "price set": (
        case("price set t4 0.35 --currency EUR", "0.35"),
        case("price set t4 much", "is not a price", 1),
    ),
    "price rm": (
        case("price rm v100", before=(("price", "set", "v100", "1", "--currency", "EUR"),)),
        case("price rm v100", "there is no price", 1),
    ),
    "tenant idle": (
        case("tenant idle default warn --after 1h", "warned after 1h00m"),
        case("tenant idle default release --after 10s", "idle_for", 1),
        case("tenant idle no-such off", "does not exist", 1),
        case("tenant idle default off", "go on"),
    ),
    "upload ls": (case("upload ls", "SHA256"),),
    "upload rm": (
        case(f"upload rm {'0' * 64}", "does not exist", 1),
        case("upload rm nowhere", "neither a directory nor a SHA-256", 2),
    ),
}
