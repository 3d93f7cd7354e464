"""Resolving: many rows of one entry become the one that counts.

The rules, newest row first:

* a put or a delete hides everything older; a clear hides every older row of its key, whatever the sub-key;
* merge rows fold, column by column, onto the newest put below them, or onto the column's default where there is none; a null
  operand leaves its column alone;
* a row whose time to live has ended acts as a delete. Below a newer merge that is judged at the time the merge was written,
  so that a blind merge gives what reading, adding and writing back would have given;
* deletes, clears and merges without a base are kept unless nothing older exists below (``bottom``): dropped any earlier, an
  older value would come back to life.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.store.rows import layout, merge_functions
from floodplain.store.rows.layout import CLEAR, DELETE, EXPIRES, MERGE, OP, PUT, SUB
from floodplain.store.rows.row_classes import refine, starts_of
from floodplain.versions.records.schema import Field, TableSchema, value_from_bytes


@dataclass(frozen=True, slots=True)
class Rules:
    """How far to resolve."""

    now_ms: int
    keep_unfolded: bool = False
    """Leave operands as they are where this process lacks their merge; otherwise that is an error."""


def default_array(field: Field, rows: int) -> pa.Array:
    if not field.default:
        return pa.nulls(rows, field.arrow)
    return pa.repeat(value_from_bytes(field.default), rows)


def resolve(
    rows: pa.Table, owner: np.ndarray, newest: np.ndarray, schema: TableSchema, rules: Rules, bottom: np.ndarray | None = None
) -> tuple[pa.Table, np.ndarray]:
    """The rows that count, in (owner, sub-key) order, and the owner of each.

    ``owner`` numbers the key of each row. ``newest`` ranks recency: larger is newer; rows of one run share a rank and stand
    newest first. ``bottom`` tells per row that nothing older exists elsewhere; None says so for all.
    """
    if bottom is None:
        bottom = np.ones(len(owner), bool)
    op = layout.numbers(rows, OP)
    clears, hidden, based = _apply_clears(op, owner, newest, bottom)
    if len(clears) or hidden.any():
        kept = np.flatnonzero(~hidden)
        clear_rows, clear_owner = rows.take(pa.array(clears)), owner[clears]
        resolved, of = _resolve_entries(rows.take(pa.array(kept)), owner[kept], newest[kept], schema, rules, based[kept])
        order = np.argsort(np.concatenate([clear_owner, of]), kind="stable")
        return pa.concat_tables([clear_rows, resolved]).take(pa.array(order)), np.concatenate([clear_owner, of])[order]
    return _resolve_entries(rows, owner, newest, schema, rules, based)


def _apply_clears(
    op: np.ndarray, owner: np.ndarray, newest: np.ndarray, bottom: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The clear rows to keep, which rows are hidden (or are clears), and per row whether anything older can exist."""
    at = np.flatnonzero(op == CLEAR)
    if not len(at):
        return at, np.zeros(len(op), bool), bottom
    rank = np.full(int(owner.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(rank, owner[at], newest[at])
    hidden = (op == CLEAR) | (newest < rank[owner])
    top = at[newest[at] == rank[owner[at]]]
    top = top[np.unique(owner[top], return_index=True)[1]]
    return top[~bottom[top]], hidden, bottom | (rank[owner] > np.iinfo(np.int64).min)


def _resolve_entries(
    rows: pa.Table, owner: np.ndarray, newest: np.ndarray, schema: TableSchema, rules: Rules, bottom: np.ndarray
) -> tuple[pa.Table, np.ndarray]:
    rows, owner, entry, bottom = _by_entry(rows, owner, newest, schema, bottom)
    first = starts_of(entry)
    op = _expire_rows(rows, layout.numbers(rows, OP), first, schema, rules)
    heads = np.flatnonzero(first)
    if (op[heads] == MERGE).any():
        picked, out = _Folding(rows, op, first, bottom, schema, rules).fold()
    else:
        picked, out = heads, rows if len(heads) == len(op) else rows.take(pa.array(heads))
        out = _with_ops(out, op[heads])
    out = _expire_values(out, starts_of(entry[picked]), schema, rules)
    keep = (layout.numbers(out, OP) != DELETE) | ~bottom[picked]
    if not keep.all():
        out, picked = out.filter(pa.array(keep)), picked[keep]
    return out, owner[picked]


def _by_entry(
    rows: pa.Table, owner: np.ndarray, newest: np.ndarray, schema: TableSchema, bottom: np.ndarray
) -> tuple[pa.Table, np.ndarray, np.ndarray, np.ndarray]:
    """Rows sorted by (owner, entry), newest first, and the number of the entry of each."""
    sub = layout.numbers(rows, SUB) if schema.shape != "value" else np.zeros(len(owner), np.uint64)
    if not _in_order(owner, sub, newest):
        order = np.lexsort((-newest, sub, owner))
        rows, owner, sub, bottom = rows.take(pa.array(order)), owner[order], sub[order], bottom[order]
    entry = refine(starts_of(owner, sub), layout.column_arrays(rows, layout.stored_subkeys(schema)))
    if len(entry) and (entry[1:] < entry[:-1]).any():
        order = np.argsort(entry, kind="stable")
        rows, owner, entry, bottom = rows.take(pa.array(order)), owner[order], entry[order], bottom[order]
    return rows, owner, entry, bottom


def _in_order(owner: np.ndarray, sub: np.ndarray, newest: np.ndarray) -> bool:
    """Whether rows stand by owner, sub-key and newest first, as they do when they come from sorted runs without collisions."""
    if (owner[1:] < owner[:-1]).any():
        return False
    same = np.flatnonzero(owner[1:] == owner[:-1])
    if (sub[same + 1] < sub[same]).any():
        return False
    same = same[sub[same + 1] == sub[same]]
    return not (newest[same + 1] > newest[same]).any()


def _expire_rows(rows: pa.Table, op: np.ndarray, first: np.ndarray, schema: TableSchema, rules: Rules) -> np.ndarray:
    if not schema.ttl_ms:
        return op
    ends = layout.expiries(rows, EXPIRES)
    ended = ends <= _judged_at(ends, first, schema.ttl_ms, rules.now_ms)
    return np.where(ended & (op != CLEAR), np.uint8(DELETE), op)


def _judged_at(ends: np.ndarray, first: np.ndarray, ttl_ms: int, now_ms: int) -> np.ndarray:
    """The time at which each row's end is judged: now for the newest, else when the row above it was written."""
    judged = np.empty(len(ends), np.int64)
    judged[1:] = ends[:-1] - ttl_ms
    judged[first] = now_ms
    return judged


def _expire_values(rows: pa.Table, newest: np.ndarray, schema: TableSchema, rules: Rules) -> pa.Table:
    """Ended values become defaults; but for operands, and what lies below operands: those are judged when they fold."""
    settled = newest & (layout.numbers(rows, OP) == PUT)
    renewed: dict[str, pa.Array] = {}
    for field in schema.values:
        if field.ttl_ms:
            ended = settled & (layout.expiries(rows, layout.expires_column(field)) <= rules.now_ms)
            if ended.any():
                name = layout.column(field)
                choice = np.where(ended, len(ended) + np.arange(len(ended)), np.arange(len(ended)))
                values = pa.concat_arrays([layout.one_array(rows.column(name)), default_array(field, len(ended))])
                renewed[name] = values.take(pa.array(choice))
    return layout.with_columns(rows, renewed)


def _with_ops(rows: pa.Table, op: np.ndarray) -> pa.Table:
    return layout.with_columns(rows, {OP: pa.array(op)})


class _Folding:
    """Folds the merge rows that lead an entry onto the put below them, if there is one."""

    def __init__(
        self, rows: pa.Table, op: np.ndarray, first: np.ndarray, bottom: np.ndarray, schema: TableSchema, rules: Rules
    ) -> None:
        self.rows, self.op, self.schema, self.rules = rows, op, schema, rules
        self.entry = np.cumsum(first) - 1
        self.heads = np.flatnonzero(first)
        self.merging = op[self.heads] == MERGE
        settled = np.cumsum(op != MERGE)
        settled -= (settled[self.heads] - (op[self.heads] != MERGE))[self.entry]
        base = np.flatnonzero((settled == 1) & (op != MERGE))
        self.base = np.full(len(self.heads), -1)
        self.base[self.entry[base]] = base
        self.base_op = np.where(self.base >= 0, op[self.base], MERGE)
        leads = settled == 0
        leads[base] |= op[base] == PUT
        self.involved = np.flatnonzero(leads & self.merging[self.entry])
        self.grounded = (self.base_op != MERGE) | bottom[self.heads]

    def fold(self) -> tuple[np.ndarray, pa.Table]:
        """Rows picked as templates, and the rows with their folded columns; more than one row of an entry if unfolded."""
        unfolded = self._unfoldable()
        template = np.where(self.merging & (self.base_op == PUT), self.base, self.heads)
        done = np.ones(len(self.heads), bool)
        done[unfolded] = False
        out = self.rows.take(pa.array(template))
        op = np.where(self.merging & ~self.grounded, np.uint8(MERGE), np.where(self.merging, np.uint8(PUT), self.op[self.heads]))
        folded: dict[str, pa.Array] = {OP: pa.array(op.astype(np.uint8))}
        if self.schema.ttl_ms:
            folded[EXPIRES] = layout.one_array(self.rows.column(EXPIRES)).take(pa.array(self.heads))
        for field in self.schema.values:
            folded |= self._fold_field(out, field)
        out = layout.with_columns(out, folded)
        if done.all():
            return template, out
        return self._with_unfolded(template, out, done)

    def _with_unfolded(self, template: np.ndarray, out: pa.Table, done: np.ndarray) -> tuple[np.ndarray, pa.Table]:
        left = np.flatnonzero(~done[self.entry] & (np.isin(np.arange(len(self.op)), self.involved) | self._is_base()))
        picked = np.concatenate([template[done], left])
        rows = pa.concat_tables([out.filter(pa.array(done)), _with_ops(self.rows, self.op).take(pa.array(left))])
        order = np.argsort(self.entry[picked], kind="stable")
        return picked[order], rows.take(pa.array(order))

    def _is_base(self) -> np.ndarray:
        mask = np.zeros(len(self.op), bool)
        mask[self.base[self.base >= 0]] = True
        return mask

    def _unfoldable(self) -> np.ndarray:
        """Entries that need a merge this process does not have, or whose operands must stay apart."""
        entries = [self._written_apart()]
        for field in self.schema.values:
            if not field.merge or merge_functions.find(field.merge) is not None:
                continue
            operands = self.rows.column(layout.column(field)).take(pa.array(self.involved))
            entries_with_operand = self.entry[self.involved[operands.is_valid().to_numpy()]]
            if len(entries_with_operand) and not self.rules.keep_unfolded:
                merge_functions.required(field.merge, self.schema.table)
            entries.append(entries_with_operand)
        return np.unique(np.concatenate(entries))

    def _written_apart(self) -> np.ndarray:
        """Entries without a base yet, with operands of different times: the base's end will be judged at the first of them."""
        names = [EXPIRES] if self.schema.ttl_ms else []
        names += [layout.expires_column(field) for field in self.schema.values if field.ttl_ms]
        loose = self.involved[~self.grounded[self.entry[self.involved]]]
        apart = np.zeros(max(len(loose) - 1, 0), bool)
        for name in names:
            ends = layout.expiries(self.rows, name)[loose]
            apart |= ends[1:] != ends[:-1]
        of = self.entry[loose]
        return of[1:][apart & (of[1:] == of[:-1])]

    def _fold_field(self, out: pa.Table, field: Field) -> dict[str, pa.Array]:
        """The field's columns, folded."""
        columns: dict[str, pa.Array] = {}
        name = layout.column(field)
        baseless = self.merging & self.grounded & (self.base_op != PUT)
        values = layout.one_array(out.column(name))
        choice = np.arange(len(values))
        choice[baseless] = len(values)
        pool = [values, default_array(field, 1)]
        if field.merge and merge_functions.find(field.merge) is not None:
            used, cut = self._operands(field)
            if len(used):
                folded, of = self._folded(field, used, baseless | cut)
                pool.append(folded)
                choice[of] = len(values) + 1 + np.arange(len(of))
                if field.ttl_ms:
                    columns[layout.expires_column(field)] = self._newest_expiry(out, field, used)
        columns[name] = pa.concat_arrays(pool).take(pa.array(choice))
        return columns

    def _folded(self, field: Field, used: np.ndarray, on_default: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        """The operands at ``used`` folded, oldest first, and the entry of each value; some entries start from the default."""
        values = pa.concat_arrays([layout.one_array(self.rows.column(layout.column(field))), default_array(field, 1)])
        row, of = used[::-1], self.entry[used[::-1]]
        if field.default:
            starts = np.flatnonzero(starts_of(of) & on_default[of])
            row, of = np.insert(row, starts, len(values) - 1), np.insert(of, starts, of[starts])
        starts = np.flatnonzero(starts_of(of))
        return merge_functions.required(field.merge, self.schema.table)(values.take(pa.array(row)), starts), of[starts]

    def _operands(self, field: Field) -> tuple[np.ndarray, np.ndarray]:
        """Involved rows with an operand (or base value) for this field, in row order, cut where an older one had ended.

        And per entry whether it was cut.
        """
        valid = self.rows.column(layout.column(field)).is_valid().to_numpy()
        cut = np.zeros(len(self.heads), bool)
        if not field.ttl_ms:
            return self.involved[valid[self.involved]], cut
        # A null that was put ends too: from then on the value is the default.
        used = self.involved[(valid | (self.op == PUT))[self.involved]]
        ends = layout.expiries(self.rows, layout.expires_column(field))[used]
        first = starts_of(self.entry[used])
        ended = ends <= _judged_at(ends, first, field.ttl_ms, np.iinfo(np.int64).min)
        broken = np.cumsum(ended)
        heads = np.flatnonzero(first)
        before = (broken[heads] - ended[heads])[np.cumsum(first) - 1]
        cut[self.entry[used[broken != before]]] = True
        used = used[(broken == before) & valid[used]]
        return used, cut

    def _newest_expiry(self, out: pa.Table, field: Field, used: np.ndarray) -> pa.Array:
        name = layout.expires_column(field)
        newest = used[starts_of(self.entry[used])]
        ends = layout.one_array(out.column(name))
        choice = np.arange(len(ends))
        choice[self.entry[newest]] = len(ends) + np.arange(len(newest))
        fresh = layout.one_array(self.rows.column(name)).take(pa.array(newest))
        return pa.concat_arrays([ends, fresh]).take(pa.array(choice))
