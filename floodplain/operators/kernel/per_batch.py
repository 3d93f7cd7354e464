"""Calls a ``KeyedBatchProcess`` once for all keys of a task."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from floodplain.errors import UserError
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext, Context
from floodplain.operators.kernel.error_attribution import is_users_fault
from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.outputs import OutputConverter
from floodplain.operators.kernel.per_key import keys_of
from floodplain.operators.kernel.segments import TooLarge
from floodplain.state.frames import as_table, is_frame


class PerBatchCaller:
    """Calls ``process`` once with the rows, then ``on_timers`` until no timer is due."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context) -> None:
        self._operator, self._grouped, self._epoch = operator, grouped, context.epoch
        self._process: Any = operator.process
        self._context = BatchContext(context)
        self._batch = Batch(operator.name, grouped, handles, naive=context.naive)

    def run(self) -> pa.Table:
        made = [self._call("process", self._batch, self._context)]
        while len(due := self._batch.take_due(fire=True)):
            made.append(self._call("on_timers", self._batch, due, self._context))
        self._batch.write()
        return pa.concat_tables(made)

    def _call(self, method: str, *args: Any) -> pa.Table:
        try:
            made = getattr(self._process, method)(*args)
        except Exception as error:
            if not is_users_fault(error):
                raise
            key = keys_of(self._operator, self._grouped)[error.group] if isinstance(error, TooLarge) else None
            raise UserError.of(self._operator.name, self._epoch, key, None, error) from error
        target = OutputConverter(self._operator.name, self._operator.output)
        try:
            return target.table([]) if made is None else target.conform(as_table(made) if is_frame(made) else made)
        except UserError as error:
            raise UserError(f"{error} (epoch {self._epoch})") from error
