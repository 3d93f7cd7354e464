"""Tables beyond what one Arrow array holds."""

from tests.soak.outcome import Trial
from tests.store import test_limits_soak as limits

FEW = limits.ROWS // 50
"""Of a control."""


def gigabytes(trial: Trial) -> None:
    """Written, scanned, compared, looked up and compacted, and equal to what was written. A control has fewer rows."""
    kind, count = trial.rng.choice(("many rows", "one key group", "one key")), limits.ROWS if trial.faulty else FEW
    trial.note(f"{kind}: {count} rows of {limits.ROW_BYTES} bytes")
    folder = trial.folder / "state"
    if kind == "many rows":
        limits.many_rows(folder, count)
    else:
        limits.one_group(limits.VALUE if kind == "one key group" else limits.MAP, folder, count)
    trial.require(True, "all that was read has the checksum of what was written")
