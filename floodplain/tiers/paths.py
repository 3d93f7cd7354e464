"""Every blob name, made and parsed in one place. Positions are padded so that name order is number order."""

import re

from floodplain.errors import BadName, Refused

FORMAT = "format"
LOG = "log/"
MANIFESTS = "manifest/"
FENCES = "fence/"
RUNS = "runs/"
SEEN = "seen/"
STAGED = "staged/"
PINS = "pins/"
PROBES = "probe/"
PUBLISHED = "epoch-"
"""In the place that a sink writes to, not in a store."""
SOURCES = "sources/"
"""In the checkpoint of an engine: the files that its sources keep of what they have read."""
BATCHES = "batches/"
"""Opens the names of notes on batches, which stand beside those files in the log and never are files."""
TEMPS = "tmp/"
"""Taken by the directory tier for files that are not yet blobs."""

_DIGITS = 20
_NAME = re.compile(r"[a-z0-9_]{1,64}\Z")
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,199}"
_BLOB = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,7}}\Z")
_PUBLISHED = re.compile(rf"{PUBLISHED}(\d+)-\d+-(.*)\.parquet\Z")
_RUN_START = re.compile(rf"(?:runs|seen)/(\d{{{_DIGITS}}})-")
_SEEN = re.compile(rf"seen/\d{{{_DIGITS}}}(?:-[A-Za-z0-9_]+)+\.seen\Z")
_SOURCE_ENTRY = re.compile(r"(sources/[^/]+)/([0-9]{1,18})(\.compact)?\Z")
_STAGED = re.compile(rf"staged/\d{{{_DIGITS}}}(?:-[A-Za-z0-9_.=]+){{5}}[A-Za-z0-9_.=-]*\.parquet\Z")
_STAGED_AUTHOR = re.compile(rf"staged/\d{{{_DIGITS}}}-(\d+)-(\d+)-")


def checked_name(what: str, name: str) -> str:
    """``name`` if it is one a user may give to a table, column, tag, owner or sink; raises ``BadName`` otherwise."""
    if not is_name(name):
        raise BadName.of(what, name)
    return name


def is_name(name: object) -> bool:
    """Whether a user may give it to a table, column, tag, owner or sink."""
    return isinstance(name, str) and _NAME.match(name) is not None


def is_blob(name: object) -> bool:
    """Whether every tier can hold ``name``, under its root and nowhere else."""
    return isinstance(name, str) and _BLOB.match(name) is not None and not name.startswith(TEMPS)


def is_run(name: str) -> bool:
    """Whether it can be the name of a run object, and of nothing else."""
    return name.startswith(RUNS) and is_blob(name)


def is_seen(name: str) -> bool:
    """Whether it can have been made by ``seen``."""
    return is_blob(name) and _SEEN.match(name) is not None


def is_staged(name: str) -> bool:
    """Whether it can have been made by ``staged``."""
    return is_blob(name) and _STAGED.match(name) is not None


def is_source_note(name: str) -> bool:
    """Whether a source position may hold something under this name: a file below the checkpoint and nowhere else, or no file."""
    return name.startswith(BATCHES) or (name.startswith(SOURCES) and is_blob(name))


def source_entry(name: str) -> tuple[str, int, bool] | None:
    """Of a file that is an entry of a source's log: the folder of the source, the number of the entry, and whether it replaces
    all up to it. None for any other name."""
    match = _SOURCE_ENTRY.match(name) if is_source_note(name) else None
    return None if match is None else (match[1], int(match[2]), match[3] is not None)


def checked_blob(name: str) -> str:
    """``name`` if it is a blob name; raises ``Refused`` otherwise."""
    if not is_blob(name):
        raise Refused(f"blob name {name!r} is not allowed: use relative names made by tiers/paths.py")
    return name


def checked_prefix(prefix: str) -> str:
    """``prefix`` if some blob name can start with it; raises ``Refused`` otherwise."""
    if prefix != "" and not is_blob(str(prefix).removesuffix("/")):
        raise Refused(f"prefix {prefix!r} is not allowed: use the start of a name made by tiers/paths.py")
    return prefix


def _number(n: int) -> str:
    return f"{n:0{_DIGITS}d}"


def log(position: int) -> str:
    return f"{LOG}{_number(position)}.edit"


def manifest(position: int) -> str:
    return f"{MANIFESTS}{_number(position)}.manifest"


def fence(segment: int) -> str:
    """Says that a segment of the log was trimmed."""
    return f"{FENCES}{_number(segment)}.fence"


def pin(nonce: str) -> str:
    return f"{PINS}{nonce}.pin"


def probe(nonce: str) -> str:
    return f"{PROBES}{nonce}"


def run(start: int, author: str, part: str) -> str:
    """The object of one task: ``start`` is the log position its writer started from, ``part`` is unique within it."""
    return f"{RUNS}{_number(start)}-{author}-{part}.run"


def seen(start: int, author: str, part: str) -> str:
    """What sources have read, of many epochs: ``start`` and ``author`` are those of the epoch that writes the object."""
    return f"{SEEN}{_number(start)}-{author}-{part}.seen"


def staged(start: int, author: str, operator: str, output: str, part: str) -> str:
    """Rows of one output of one task, until they are published."""
    return f"{STAGED}{_number(start)}-{author}-{operator}-{output}-{part}.parquet"


def output_of(staged_name: str) -> tuple[str, str]:
    """Operator and output in a name made by ``staged``; its author is lease token, epoch and attempt."""
    _, _, _, _, operator, output, *_ = staged_name.split("-")
    return operator, output


def published(epoch: int, number: int, app: str) -> str:
    """An output file of an epoch; ``app`` keeps the files of several states in one place apart."""
    return f"{PUBLISHED}{epoch:012d}-{number:05d}-{app}.parquet"


def epoch_published(name: str, app: str) -> int:
    """The epoch of an output file of ``app``, 0 for any other name."""
    match = _PUBLISHED.match(name)
    return int(match[1]) if match and match[2] == app else 0


def token_and_epoch_of(name: str) -> tuple[int, int] | None:
    """Lease token and epoch in a name made by ``staged``, or None if it is not such a name."""
    match = _STAGED_AUTHOR.match(name)
    return (int(match[1]), int(match[2])) if match else None


def position_of(name: str) -> int | None:
    """The position in a log or manifest name, or None if it is not such a name."""
    stem = name.rpartition("/")[2].partition(".")[0]
    return int(stem) if len(stem) == _DIGITS and stem.isdigit() else None


def start_of_run(name: str) -> int | None:
    """The log position that the writer of this object of runs, or of seen files, started from; None if it is neither."""
    match = _RUN_START.match(name)
    return int(match[1]) if match else None
