"""What an earlier pipeline left in the state: this one can take it over, or its user is told what to do. Nothing is written."""

import io
from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.errors import BadInput
from floodplain.operators.kernel.event_order import WAITING, rows_wait
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.sinks.staged import open_staged
from floodplain.state.tables import SEPARATOR
from floodplain.store.read.snapshot import Snapshot
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log.inline_output import inline_outputs
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.vouched import Vouched

Named = tuple[str, str]
"""An operator, or a step without state, and one of its outputs."""


def unpublished(head: Manifest, outputs: Collection[Named]) -> dict[Named, list[str]]:
    """The staged files of the last epoch. Raises if one is of an output that is not among these."""
    named: dict[Named, list[str]] = {output: [] for output in outputs}
    for file in head.outputs:
        if paths.output_of(file) not in named:
            raise _left(head, paths.output_of(file), "this pipeline does not have it")
        named[paths.output_of(file)].append(file)
    return named


def vouched(head: Manifest, blobs: Blobs, inline: Mapping[str, bytes] | None = None) -> Vouched:
    """The blobs, with the staged files of the last epoch as its edit vouches for them. ``inline``: what it holds of them, if that
    is known already."""
    held = inline_outputs(blobs, head) if inline is None else inline
    return Vouched(blobs, dict(zip(head.outputs, head.sums, strict=False)), max(head.epoch - 1, 0), held)


def check_unpublished(head: Manifest, outputs: Mapping[Named, pa.Schema], blobs: Blobs) -> None:
    """Whether sinks of these columns can publish what is left of the last epoch. Raises ``Corrupt`` if some of it is damaged."""
    if head.published >= head.epoch:
        return
    blobs = vouched(head, blobs)
    for output, files in unpublished(head, outputs).items():
        wanted = _staged(outputs[output])
        for file in files:
            staged = _plain(open_staged(file, blobs).schema_arrow)
            if staged != wanted:
                raise _left(
                    head, output, f"this pipeline gives other columns ({_columns(wanted)}) than it has ({_columns(staged)})"
                )


def check_waiting(snapshot: Snapshot, operators: Iterable[KeyedOperator]) -> None:
    """Whether rows wait for their turn in the state of an operator that does not put rows in order any more."""
    for operator in operators:
        table = f"{operator.name}{SEPARATOR}{WAITING}"
        if WAITING in operator.tables.places or table not in snapshot.manifest.schemas:
            continue
        if rows_wait(snapshot.stored(table)):
            raise BadInput(
                f"operator {operator.name}: rows wait in the state ({table}) until the watermark passes them, and without "
                "in_order none would be processed any more. Start it with in_order until they are through; or give the step "
                f"another name, and let them go with the state of this one: start(drop=[{operator.name!r}])"
            )


def _left(head: Manifest, output: Named, why: str) -> BadInput:
    return BadInput(
        f"epoch {head.epoch} has output {output[1]!r} of {output[0]!r} that was not published before the last stop, and {why}: "
        "start the pipeline that made it once more"
    )


def _staged(schema: pa.Schema) -> pa.Schema:
    """The columns of a staged file of these, as it is read."""
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink)
    return _plain(pq.ParquetFile(sink).schema_arrow)


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in schema])


def _nullable(type_: pa.DataType) -> pa.DataType:
    """Whether values within a column can be null is not known before its rows are."""
    if pa.types.is_map(type_):
        return pa.map_(_nullable(type_.key_type), _nullable(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_nullable(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in type_])
    return type_


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
