"""Bugs in appending to the log, in folding it, and in what makes it durable."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "under_a_lease_a_trimmed_position_is_opened_again",
        "commit",
        "first, later = _looked(history, head)",
        "first, later = (True, True) if token else _looked(history, head)",
        ("commits::test_a_paused_writer_cannot_reopen_a_trimmed_position",),
    ),
    Plant(
        "fences_are_looked_for_before_the_create",
        "commit",
        """        if _create(history, edit, data) is None:
            first, later = _looked(history, head)
""",
        """        first, later = _looked(history, head)
        if _create(history, edit, data) is None:
""",
        ("fenced::test_whenever_others_trim_the_log_an_edit_counts_once_or_not_at_all",),
    ),
    Plant(
        "the_log_is_trimmed_before_its_fences_stand",
        "garbage",
        """    fences.create(blobs, history.format.store, going, length, retry, history.clock, history.randomness)
    blobs.delete(info.name for _, info in edits)
""",
        """    blobs.delete(info.name for _, info in edits)
    fences.create(blobs, history.format.store, going, length, retry, history.clock, history.randomness)
""",
        ("fenced::test_a_collection_that_dies_anywhere_fools_no_writer",),
    ),
    Plant(
        "only_the_last_segment_gets_a_fence",
        "fences",
        "sorted({segment_of(position, length) for position in positions})",
        "sorted({segment_of(position, length) for position in positions})[-1:]",
        ("fenced::test_each_segment_that_loses_an_edit_has_a_fence",),
    ),
    Plant(
        "the_log_is_trimmed_in_the_segment_that_it_ends_in",
        "garbage",
        "fences.segment_of(position, length) < ends_in:",
        "fences.segment_of(position, length) <= ends_in:",
        ("fenced::test_writers_at_the_end_of_the_log_list_nothing",),
    ),
    Plant(
        "a_log_of_an_earlier_release_is_taken_for_fenced",
        "commit",
        "    if head.fenced:\n",
        "    if head.fenced >= 0:\n",
        ("fenced::test_where_an_earlier_release_may_have_trimmed_checkpoints_tell",),
    ),
    Plant(
        "a_reader_of_an_earlier_release_is_taken_for_fenced",
        "follow",
        "    if not base.fenced:\n",
        "    if base.fenced < 0:\n",
        ("fenced::test_where_an_earlier_release_may_have_trimmed_checkpoints_tell",),
    ),
    Plant(
        "what_follows_is_believed_without_a_look_for_fences",
        "follow",
        "return None if passed else manifest",
        "return None if passed and manifest is base else manifest",
        ("commits::test_a_reader_is_not_fooled_by_a_stray",),
    ),
    Plant(
        "the_fence_of_the_edit_that_is_missing_is_not_looked_for",
        "follow",
        "fences.stand(blobs, base.position + 1, manifest.position + 1, segment)",
        "manifest is not base and fences.stand(blobs, base.position + 1, manifest.position, segment)",
        ("fenced::test_whenever_others_trim_the_log_a_reader_sees_all_of_it",),
    ),
    Plant(
        "an_edit_of_another_is_taken_for_ours",
        "commit",
        "if nonces[edit.position] == edit.nonce:",
        "if nonces[edit.position]:",
        ("commits::test_a_writer_without_a_lease_goes_on_after_its_position_was_trimmed",),
    ),
    Plant(
        "a_lost_answer_is_taken_for_a_lost_race",
        "create",
        "return None if stored.equals(whole(data)) else stored",
        "return None if isinstance(answer, Unavailable) and stored.equals(whole(data)) else stored",
        ("creates::test_stored_whatever_the_answer_is_ours",),
    ),
    Plant(
        "what_another_has_stored_is_taken_for_ours",
        "create",
        "return None if stored.equals(whole(data)) else stored",
        "return None if len(stored) == len(whole(data)) else stored",
        ("creates::test_taken_whatever_the_answer_is_theirs",),
    ),
    Plant(
        "a_trimmed_log_is_taken_for_damage",
        "history",
        """            if newer.manifest is None:
                break
""",
        """            if newer.manifest is None or replayed.damage is not None:
                break
""",
        ("recovery::test_refresh_after_the_log_was_trimmed_past_this_process",),
    ),
    Plant(
        "a_gap_ends_the_log",
        "replay",
        """            yield expected, between
            if between is None:
                return
""",
        """            if between is None:
                return
            yield expected, between
""",
        ("damaged_log::test_a_missing_edit_is_a_gap",),
    ),
    Plant(
        "the_chain_is_checked_within_a_store_only_by_its_length",
        "manifest",
        "_require(edit.previous == manifest.chain,",
        "_require(len(edit.previous) == len(manifest.chain),",
        ("damaged_log::test_an_edit_from_another_future_breaks_the_chain",),
    ),
    Plant(
        "time_travel_stops_one_edit_short",
        "replay",
        "return list(takewhile(lambda position: up_to is None or position <= up_to, positions))",
        "return list(takewhile(lambda position: up_to is None or position < up_to, positions))",
        ("recovery::test_time_travel_before_and_after_trimming",),
    ),
    Plant(
        "a_log_shorter_than_a_damaged_checkpoint_is_believed",
        "history",
        "if newer.reach > head.position:",
        "if newer.reach > head.position and replayed.damage is not None:",
        ("damaged_log::test_a_log_that_ends_before_a_damaged_checkpoint_is_not_believed",),
    ),
    Plant(
        "the_oldest_nonces_are_kept",
        "manifest",
        "nonces = (*manifest.nonces, (edit.position, edit.nonce))[-REMEMBERED_EDITS:]",
        "nonces = (*manifest.nonces, (edit.position, edit.nonce))[:REMEMBERED_EDITS]",
        ("fold::test_nonces_are_forgotten_at_last",),
    ),
    Plant(
        "a_name_is_linked_before_its_bytes_are_durable",
        "directory",
        """            write_all(fd, views)
            if self._sync:
                os.fsync(fd)
""",
        """            write_all(fd, views)
""",
        ("directories::TestOrder::test_create_writes_syncs_links_and_syncs_the_directory",),
    ),
    Plant(
        "a_taken_name_is_told_before_it_is_durable",
        "directory",
        """                # Whoever sees the name as taken may build on it, so it must outlast a power cut from here on.
                self._folders.sync(path.parent)
""",
        "",
        ("directories::TestOrder::test_a_taken_name_is_durable_before_it_is_reported",),
    ),
)
