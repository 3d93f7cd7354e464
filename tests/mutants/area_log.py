"""Bugs in appending to the log, in folding it, and in what makes it durable."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "under_a_lease_a_trimmed_position_is_opened_again",
        "commit",
        "if theirs is None and next(manifests.stored(history.blobs, above=head.position), None) is None:",
        "if theirs is None and (token or next(manifests.stored(history.blobs, above=head.position), None) is None):",
        ("commits::test_a_paused_writer_cannot_reopen_a_trimmed_position",),
    ),
    Plant(
        "checkpoints_are_looked_for_before_the_create",
        "commit",
        """        theirs = _create(history, edit, data)
        if theirs is None and next(manifests.stored(history.blobs, above=head.position), None) is None:
""",
        """        newer = next(manifests.stored(history.blobs, above=head.position), None)
        theirs = _create(history, edit, data)
        if theirs is None and newer is None:
""",
        ("commits::test_a_commit_that_others_built_on_and_checkpointed_is_counted",),
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
