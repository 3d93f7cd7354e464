"""Every error that Floodplain raises on purpose.

Each message says what happened, to what, and what to do. Callers catch the base class, or the one kind they can act on.
"""


class FloodplainError(Exception):
    """The base of all errors raised on purpose."""


class BadInput(FloodplainError):
    """What the caller passed cannot be used; nothing was written."""


class NoSuchMethod(BadInput, AttributeError):
    """A method of PySpark that Floodplain spells differently; the message says how."""


class NotNative(BadInput):
    """A file of the input that is left to Spark's own reader. Nothing was computed from it."""


class BadName(BadInput):
    """A table, column, tag, owner or sink name outside ``[a-z0-9_]{1,64}``."""

    @classmethod
    def of(cls, what: str, name: object) -> "BadName":
        return cls(f"{what} name {name!r} is not allowed: use 1 to 64 of the characters a-z, 0-9 and _")


class SchemaMismatch(BadInput):
    """Rows, or a changed table definition, that do not fit the table's schema."""


class IncompatibleChange(BadInput):
    """A job was changed in a way that its state cannot follow; nothing was written. The message has the ways out."""


class MergeUnavailable(FloodplainError):
    """A user's merge function is needed to read a value, and this process has not registered it."""


class StoreNotFound(FloodplainError):
    """There is no Floodplain store at this location."""


class UnsafeStore(FloodplainError):
    """The location does not guarantee create-if-absent, on which commits rely, or it is too small."""


class NotFound(FloodplainError):
    """A blob does not exist."""


class AlreadyExists(FloodplainError):
    """A create found the name taken. That is ambiguous: an earlier attempt of the same caller may have taken it."""


class Unavailable(FloodplainError):
    """A tier did not answer, or failed for the time being, after as many attempts as the settings allow."""


class Refused(FloodplainError):
    """A tier refused for good: permissions, a malformed request, no space."""


class NoSpace(Refused):
    """A disk or quota is full. What was being written does not count and can be written again once there is space."""


class Corrupt(FloodplainError):
    """Bytes that are not what the log vouches for. They were not used."""

    def __init__(self, file: str, expected: str, found: str, last_good_epoch: int | None = None) -> None:
        self.file = file
        self.expected = expected
        self.found = found
        self.last_good_epoch = last_good_epoch
        good = "unknown" if last_good_epoch is None else str(last_good_epoch)
        super().__init__(
            f"{file} is damaged: expected {expected}, found {found}; last good epoch: {good}. "
            "Restore the file, or open the store at that epoch."
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str, int | None]]:
        return Corrupt, (self.file, self.expected, self.found, self.last_good_epoch)


class NewerFormat(FloodplainError):
    """Written by a newer release of Floodplain than this one. Nothing is damaged; nothing was used."""

    @classmethod
    def of(cls, file: str, found: object, known: object) -> "NewerFormat":
        return cls(
            f"{file} is of format {found}, and this release of Floodplain reads formats up to {known}: the state was written by "
            "a newer release. Install that one or a later one"
        )


class Conflict(FloodplainError):
    """A requirement of a commit no longer holds; nothing was committed."""


class Fenced(Conflict):
    """This writer's lease is not the newest: another writer took over. It can commit and publish nothing more."""


class LeaseHeld(Conflict):
    """Another writer holds the lease, and it has not expired."""


class SnapshotExpired(FloodplainError):
    """The epoch is no longer retained, or its pin has expired."""


class UserError(FloodplainError):
    """A user's function failed, or its result does not fit its declaration. The original error is the cause."""

    @classmethod
    def of(
        cls,
        operator: str,
        epoch: int,
        key: object,
        row: object,
        error: Exception,
        *,
        among: int = 1,
        timer_ms: int | None = None,
        state: str | None = None,
    ) -> "UserError":
        """``among``: how many rows were given, if which of them failed is not known and ``row`` is the first."""
        where = place_of(epoch, key, row, among=among, timer_ms=timer_ms, state=state)
        return cls(f"{type(error).__name__} in operator {operator}, {where}: {short(str(error), 1000, quoted=False)}")

    @classmethod
    def in_function(cls, what: str, function: object, error: Exception, epoch: int | None = None) -> "UserError":
        """Of a function that is given whole frames. ``what``: the step that was given it."""
        name = getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")
        where = f"the function {name} of {what}" + ("" if epoch is None else f", epoch {epoch}")
        return cls(f"{type(error).__name__} in {where}: {short(str(error), 1000, quoted=False)}")


def place_of(
    epoch: int, key: object, row: object, *, among: int = 1, timer_ms: int | None = None, state: str | None = None
) -> str:
    """In words, what was being processed. ``among``: how many rows were given, if ``row`` is only the first of them."""
    where = f"epoch {epoch}"
    if key is not None:
        where += f", key {short(key)}"
    if row is not None:
        where += f", row {short(row)}" if among == 1 else f", one of {among} rows, the first being {short(row)}"
    if timer_ms is not None:
        where += f", timer at {timer_ms} ms"
    if state is not None:
        where += f", state {state}"
    return where


def short(value: object, most: int = 300, *, quoted: bool = True) -> str:
    """For messages: they travel, and rows may be of any size."""
    text = repr(value) if quoted else str(value)
    return text if len(text) <= most else text[:most] + "…"
