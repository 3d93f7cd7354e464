"""What a commit changes: an edit is a list of updates at one position of the log."""

from typing import Annotated

import msgspec

from floodplain.host import Process
from floodplain.tier_use import TierUse
from floodplain.versions.records.control import NoteControl
from floodplain.versions.records.definition import Definition, DefinitionChange
from floodplain.versions.records.schema import TableSchema
from floodplain.versions.records.vouched import FileSum

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}\Z")]
USER = r"^(driver\.)?[a-z0-9_]{1,64}\Z"
"""An operator, or something that a driver does."""

GroupRanges = tuple[tuple[int, int], ...]
"""Half-open ranges of key groups, ascending, neither empty nor touching."""


class RunRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run as the manifest knows it: where its bytes are, what vouches for them, and how recent its rows are."""

    object: str
    offset: int
    length: int
    """Of the run within its object, footer included. The footer is the last ``footer_length`` bytes."""
    footer_length: int
    footer_checksum: int
    """xxh3-64 of the footer, which in turn holds a checksum for each chunk."""
    object_size: int
    table: str
    schema_id: int
    low: int
    high: int
    """The epochs whose changes it holds: recency is by this interval, never by place in the log."""
    groups: GroupRanges
    """The key groups for which it still counts; a compaction may take over some of them and leave the rest."""
    rows: int
    written_groups: int
    """How many key groups its rows fall into; ``groups`` shrinks, this does not."""
    added: int
    """The epoch of the manifest that first named it."""
    deletes: bool = False
    """Whether it holds rows that an older run needs to see: deletes and clears."""
    merges: bool = False
    first_expiry_ms: int = 0
    """When the first of its rows expires; 0 if none does."""
    last_expiry_ms: int = 0
    """When all of its rows have expired, but for deletes and clears; 0 if some never do."""
    written_as: str = ""
    """What the table was called when the run was written, if that was something else: its footer says so."""

    @property
    def id(self) -> str:
        return f"{self.object}@{self.offset}"


class SeenRef(msgspec.Struct, frozen=True):
    """Entries of the log that one source keeps of what it has read, in an object of their own."""

    source: str
    """The folder of the source, below the checkpoint of the engine."""
    first: int
    last: int
    """The numbers of its entries lie within, both included; no other object of the source has entries between them."""
    object: str
    sum: FileSum
    """Of the object."""
    content: FileSum
    """Of its entries, each without its first line: what an entry that replaces them has of them."""


class SourcePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the input was read: the engine's own record, kept as text."""

    query_id: str = ""
    batch_id: int = -1
    offsets: str = ""
    sources: dict[str, str] = {}
    """Files that sources keep of what they have read, by name. In an edit: those that are new and no object has. In a manifest:
    all that no object has."""
    forget: tuple[str, ...] = ()
    """In an edit: names of files that newer ones replace."""
    seen: tuple[SeenRef, ...] = ()
    """What objects have of such files. In an edit: new ones, each in place of all that was known from its first to its last
    entry. In a manifest: all, by source and number."""
    compacts: dict[str, FileSum] = {}
    """Of each source the newest file that replaces all entries up to its own, by name: it has what these have, so what vouches
    for it is kept, and not its text. In an edit: those that are new."""


class Assignment(msgspec.Struct, frozen=True):
    """Key group → slot, as ``(first key group, slot)`` where the slot changes."""

    version: int
    slots: int
    starts: tuple[tuple[int, int], ...]


class PutSchema(msgspec.Struct, frozen=True, tag="schema"):
    """A table is created (schema id 1) or evolves (the next id)."""

    schema: TableSchema


class DropTable(msgspec.Struct, frozen=True, tag="drop"):
    """A table and all of its content go; epochs before can still be read with it."""

    table: str


class RenameTable(msgspec.Struct, frozen=True, tag="rename"):
    """A table is called something else from now on; its rows stay where they are."""

    table: str
    to: str


class PutDefinition(msgspec.Struct, frozen=True, tag="define"):
    """What an operator was told to do, from now on."""

    operator: str
    definition: Definition


class DropDefinition(msgspec.Struct, frozen=True, tag="undefine"):
    """The pipeline no longer has this operator."""

    operator: str


class NoteChange(msgspec.Struct, frozen=True, tag="note"):
    """In words, what the other updates of this edit did to the state for a changed job."""

    what: str


class CommitEpoch(msgspec.Struct, frozen=True, tag="epoch", omit_defaults=True):
    """One epoch's changes, all or nothing."""

    epoch: int
    runs: tuple[RunRef, ...]
    source: SourcePosition | None = None
    """None: no input was read."""
    watermarks: dict[str, int] = {}
    outputs: tuple[str, ...] = ()
    """Names of staged output, to be published after the commit."""
    sums: tuple[FileSum, ...] = ()
    """What vouches for each of them, in their order; none in edits of format 1."""
    inline: dict[str, bytes] = {}
    """Those of them that are not stored: name → the file itself."""
    counts: dict[str, int] = {}
    """How much was counted in this epoch, by name, where it was anything. In a manifest: in all epochs so far."""
    set_back: tuple[str, ...] = ()
    """Those of ``watermarks`` that go back: times of a clock that was ahead."""
    begins: bool = False
    """Whether it is the first epoch of a state that was imported: epochs are counted from its number on."""
    used: dict[Annotated[str, msgspec.Meta(pattern=USER)], dict[Name, TierUse]] = {}
    """What tiers were asked for since the last epoch that tells of it, this epoch's own commit not included."""


class ReplaceRuns(msgspec.Struct, frozen=True, tag="replace"):
    """A compaction: the named runs no longer count for these key groups; the added ones hold the same content."""

    table: str
    groups: GroupRanges
    dropped: tuple[str, ...]
    added: tuple[RunRef, ...]


class TakeLease(msgspec.Struct, frozen=True, tag="lease", omit_defaults=True):
    token: int
    owner: str
    expires_ms: int
    """A hint to others when to try; fencing rests on the token alone. Every edit under the token renews it."""
    holder: Process | None = None
    """A hint, too: who can see that this process has ended need not wait."""


class ReleaseLease(msgspec.Struct, frozen=True, tag="release"):
    token: int


class SetAssignment(msgspec.Struct, frozen=True, tag="assign"):
    """The assignment of all operators. None has one of its own any more, unless ``AssignOperators`` follows."""

    assignment: Assignment


class AssignOperators(msgspec.Struct, frozen=True, tag="assign_operators"):
    """All assignments that operators have of their own, in place of those before."""

    assignments: dict[str, Assignment]


class RequestRescale(msgspec.Struct, frozen=True, tag="rescale", omit_defaults=True):
    """The query is to use other numbers of slots. It answers at its next boundary of epochs. A newer request replaces it."""

    slots: int = 0
    """Of all operators; 0: of those that are named."""
    operators: dict[str, int] = {}


class AnswerRescale(msgspec.Struct, frozen=True, tag="rescaled", omit_defaults=True):
    """The query has done what was requested: the assignments are those of this edit or stay. Or it cannot."""

    request: int
    """The position of the request."""
    refused: str = ""
    """Why not."""


class SetTag(msgspec.Struct, frozen=True, tag="tag"):
    name: str
    epoch: int


class DropTag(msgspec.Struct, frozen=True, tag="untag"):
    name: str


class DropEpochs(msgspec.Struct, frozen=True, tag="forget"):
    """These epochs can no longer be read."""

    epochs: tuple[int, ...]


class AdvanceHorizon(msgspec.Struct, frozen=True, tag="horizon"):
    """Files of writers that started at or below this position, and that nothing names, may be deleted from now on."""

    position: int


class AdvancePublished(msgspec.Struct, frozen=True, tag="published"):
    epoch: int


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an epoch holds, under the names that the manifest has for it: going back to it restores these."""

    schemas: dict[str, tuple[TableSchema, ...]] = {}
    runs: dict[str, tuple[RunRef, ...]] = {}
    source: SourcePosition = SourcePosition()
    watermarks: dict[str, int] = {}
    counts: dict[str, int] = {}
    definitions: dict[str, Definition] = {}
    changes: tuple[DefinitionChange, ...] = ()


class RestoreEpoch(msgspec.Struct, frozen=True, tag="restore"):
    """A new epoch with the content of a retained one: the only update that lets watermarks and counts go back."""

    epoch: int
    restored: int
    chain: str
    """Of the mark of the restored epoch."""
    content: Content


Update = (
    PutSchema
    | DropTable
    | RenameTable
    | PutDefinition
    | DropDefinition
    | NoteChange
    | NoteControl
    | CommitEpoch
    | ReplaceRuns
    | TakeLease
    | ReleaseLease
    | SetAssignment
    | AssignOperators
    | RequestRescale
    | AnswerRescale
    | SetTag
    | DropTag
    | DropEpochs
    | AdvanceHorizon
    | AdvancePublished
    | RestoreEpoch
)


class Edit(msgspec.Struct, frozen=True):
    """One object of the log."""

    store: str
    """Id of the store, so that a file of another store is not taken for ours."""
    position: int
    previous: str
    """Checksum of the edit before it: the log is a chain."""
    nonce: str
    """Tells its writer from all others (I3)."""
    at_ms: int
    token: int
    """Lease under which it was written; 0 for none."""
    updates: Annotated[tuple[Update, ...], msgspec.Meta(min_length=1)]
    lease_expires_ms: int = 0
    """Renews the lease of ``token`` up to then."""
    fences: bool = False
    """Its writer trims the log only behind fences, and so does everybody who can read it."""
