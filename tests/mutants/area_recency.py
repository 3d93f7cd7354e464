"""Bugs by which an older row counts over a newer one, a deleted one comes back, or operands fold wrongly."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "a_compaction_is_newer_than_the_epochs_after_it",
        "manifest",
        "runs={**manifest.runs, update.table: _newest_first((*kept, *update.added))})",
        "runs={**manifest.runs, update.table: (*update.added, *kept)})",
        ("fold::test_recency_is_by_interval_not_by_place",),
    ),
    Plant(
        "a_compaction_is_as_recent_as_the_head",
        "compactor",
        "low, high = min(run.low for run in proposal.runs), max(run.high for run in proposal.runs)",
        "low, high = min(run.low for run in proposal.runs), manifest.epoch",
        ("races::test_a_compaction_of_older_runs_is_as_recent_as_they_were",),
    ),
    Plant(
        "a_tombstone_goes_with_the_first_compaction",
        "scan",
        "gone &= bottom[key_group(layout.numbers(rows, HASH), len(bottom))]",
        "gone &= ~bottom[key_group(layout.numbers(rows, HASH), len(bottom))]",
        ("races::test_a_delete_in_a_middle_run_outlives_compactions_of_newer_runs",),
    ),
    Plant(
        "runs_older_than_a_compaction_are_overlooked",
        "compactor",
        "if run.id not in merged and run.high <= oldest:",
        "if run.id not in merged and run.high < oldest - 1:",
        ("races::test_a_delete_in_a_middle_run_outlives_compactions_of_newer_runs",),
    ),
    Plant(
        "a_clear_hides_what_was_written_after_it",
        "merge",
        "hidden = (op == CLEAR) | (newest < rank[owner])",
        "hidden = (op == CLEAR) | (newest <= rank[owner])",
        ("merges::test_a_clear_hides_older_sub_keys_and_no_newer_ones",),
    ),
    Plant(
        "the_oldest_row_of_an_entry_counts",
        "merge",
        "order = np.lexsort((-newest, sub, owner))",
        "order = np.lexsort((newest, sub, owner))",
        ("merges::test_within_one_delta_the_later_row_counts",),
    ),
    Plant(
        "operands_fold_newest_first",
        "merge",
        "row, of = used[::-1], self.entry[used[::-1]]",
        "row, of = used, self.entry[used]",
        ("folds::test_a_users_merge_sees_operands_in_order",),
    ),
    Plant(
        "a_delete_does_not_hide_what_is_older",
        "lookup",
        'settles = op != MERGE if schema.shape == "value" or lookup_keys.subs is not None else op == CLEAR',
        'settles = op == PUT if schema.shape == "value" or lookup_keys.subs is not None else op == CLEAR',
        ("lookups::test_a_delete_hides_what_is_older_beside_operands_of_other_keys",),
    ),
    Plant(
        "the_quick_lookup_goes_on_below_a_delete",
        "newest",
        """            unsettled[key_number] = False
            parts += _puts(hits, key_number) if source.reader.ref.deletes else [_Rows(hits.chunk, key_number, hits.row)]
""",
        """\
            parts += _puts(hits, key_number) if source.reader.ref.deletes else [_Rows(hits.chunk, key_number, hits.row)]
            unsettled[parts[-1].key_number] = False
""",
        ("newest_rows::test_any_history_of_puts_and_deletes",),
    ),
    Plant(
        "keys_of_one_hash_are_one_key",
        "scan",
        "return winners if len(winners) == len(rows) or _same_keys(rows, order, first, winners, schema) else None",
        "return winners if len(winners) <= len(rows) or _same_keys(rows, order, first, winners, schema) else None",
        ("newest_rows::test_keys_that_share_a_hash_stay_apart",),
    ),
    Plant(
        "a_part_of_a_level_is_compacted",
        "policy",
        "return [list(level) for _, level in groupby(runs, key=lambda run: run.high)]",
        "return [list(level) for _, level in groupby(runs, key=lambda run: (run.high, run.groups))]",
        ("policies::test_the_runs_of_one_epoch_are_one_level",),
    ),
    Plant(
        "a_get_takes_the_row_of_another_key_with_the_same_hash",
        "point_get",
        "            if any(columns[place][row].as_py() != value for place, value in zip(self._keys, key, strict=True)):\n",
        "            if False:\n",
        ("point_gets::test_keys_that_share_a_hash_are_told_apart",),
    ),
    Plant(
        "a_get_finds_what_is_deleted",
        "point_get",
        "            if deletes and columns[self._op][row].as_py() != PUT:\n",
        "            if False:\n",
        ("point_gets::test_a_get_is_the_newest_value",),
    ),
    Plant(
        "a_delta_is_applied_to_another_manifest",
        "manifest_delta",
        "    if change.before != before.chain:\n",
        "    if False:\n",
        ("manifest_deltas::test_a_delta_of_another_manifest_is_refused",),
    ),
    Plant(
        "tasks_go_on_from_a_manifest_that_was_not_sent",
        "manifest_feed",
        "if held is not None and held.chain in self.chains else -1",
        "if held is not None and held.chain in self.chains else 0",
        ("manifest_feeds::test_another_manifest_than_the_one_that_was_sent_is_refused",),
    ),
    Plant(
        "runs_that_were_narrowed_meanwhile_are_replaced",
        "requirements",
        "if missing := subtract(groups, present[run_id]):",
        "if missing := subtract(present[run_id], groups):",
        ("commits::test_each_requirement_says_what_to_do",),
    ),
)
