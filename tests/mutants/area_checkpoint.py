"""Bugs by which input is read twice or skipped, because Spark's checkpoint is trusted where it contradicts the state."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "a_replay_is_known_by_its_number_alone",
        "spark_checkpoint",
        "if here != last or batch.offsets != committed.offsets or batch.sources or batch.compacts:",
        "if here != last or batch.sources or batch.compacts:",
        ("spark_place::test_the_batch_after_the_last_is_new_the_last_a_replay_and_any_other_refused",),
    ),
    Plant(
        "any_query_may_go_on",
        "spark_checkpoint",
        "if here == (committed.query_id or batch.query_id, committed.batch_id + 1):",
        "if here[1] == committed.batch_id + 1:",
        ("spark_place::test_the_batch_after_the_last_is_new_the_last_a_replay_and_any_other_refused",),
    ),
    Plant(
        "a_checkpoint_may_be_two_batches_ahead",
        "spark_checkpoint",
        "if at[1] > committed.batch_id or not 0 <= max(at) - committed.batch_id <= 1:",
        "if at[1] > committed.batch_id or not 0 <= max(at) - committed.batch_id <= 2:",
        ("spark_place::test_a_checkpoint_that_is_not_where_the_state_is_is_refused",),
    ),
    Plant(
        "a_batch_that_spark_has_done_and_the_state_has_not_is_skipped",
        "spark_checkpoint",
        "if at[1] > committed.batch_id or not 0 <= max(at) - committed.batch_id <= 1:",
        "if not 0 <= max(at) - committed.batch_id <= 1:",
        ("spark_place::test_a_checkpoint_that_is_not_where_the_state_is_is_refused",),
    ),
    Plant(
        "offsets_of_the_last_batch_are_not_compared",
        "spark_checkpoint",
        """    query, last = query_id(checkpoint), before.batch_id
    text = _text(checkpoint, f"offsets/{batch_id}", planned)
    if last >= 0 and (query, batch_id) == (before.query_id, last + 1):
        _require_equal(checkpoint, f"offsets/{last}", before.offsets)
""",
        """    query = query_id(checkpoint)
    text = _text(checkpoint, f"offsets/{batch_id}", planned)
""",
        ("spark_damage::test_a_batch_is_not_run_on_what_is_no_longer_as_the_state_says",),
    ),
    Plant(
        "what_sources_have_noted_is_not_compared",
        "spark_checkpoint",
        "    for name in sorted(kept & known.names):",
        "    for name in sorted(kept & known.names)[:0]:",
        ("spark_damage::test_a_batch_is_not_run_on_what_is_no_longer_as_the_state_says",),
    ),
    Plant(
        "what_a_source_has_lost_is_taken_for_put_together",
        "spark_checkpoint",
        """        if not replaced(name, kept):
            raise""",
        """        if not kept and not replaced(name, kept):
            raise""",
        ("spark_damage::test_a_batch_is_not_run_on_what_is_no_longer_as_the_state_says",),
    ),
    Plant(
        "at_the_start_sources_are_not_looked_at",
        "spark_checkpoint",
        "if faults := [*batch_faults(checkpoint, committed, note), *source_faults(checkpoint, known, committed.batch_id)]:",
        "if faults := list(batch_faults(checkpoint, committed, note)):",
        ("spark_damage::test_one_file_in_the_place_of_another_is_found",),
    ),
    Plant(
        "offsets_are_compared_but_for_the_newest",
        "batch_entries",
        """    if batch == committed.batch_id:
        return differing
""",
        """    if batch < committed.batch_id:
        return differing
""",
        ("spark_damage::test_one_file_in_the_place_of_another_is_found",),
    ),
    Plant(
        "input_that_was_read_is_listed_as_new",
        "batch_entries",
        'return f"expected new input, found again {min(seen & lines)}" if seen & lines else None',
        'return f"expected new input, found again {min(seen & lines)}" if seen == lines else None',
        ("spark_damage::test_one_file_in_the_place_of_another_is_found",),
    ),
    Plant(
        "a_checksum_of_hadoop_vouches_for_any_bytes",
        "spark_files",
        "return File(data, size > 0 and sums == _checksum(data, size))",
        "return File(data, size > 0 and len(sums) == len(_checksum(data, size)))",
        ("spark_damage::test_any_damage_is_made_good_or_refused_by_name",),
    ),
    Plant(
        "a_file_without_a_checksum_is_relied_on",
        "spark_files",
        """    if file.vouched is None:
        return "expected a checksum that vouches for its content, found none beside it"
    return None if file.vouched else""",
        """    return None if file.vouched is not False else""",
        ("spark_damage::test_any_damage_is_made_good_or_refused_by_name",),
    ),
    Plant(
        "what_sources_noted_before_is_forgotten",
        "sources",
        "        sources={**kept, **update.sources},",
        "        sources=update.sources or kept,",
        ("fold::test_what_sources_have_noted_adds_up",),
    ),
)
