"""Bugs by which bytes are used that nothing vouches for."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "a_footer_of_the_right_length_is_believed",
        "footer",
        """    _expect(ref, f"footer checksum {ref.footer_checksum:016x}", checksum == ref.footer_checksum,""",
        """    sound = checksum == ref.footer_checksum or data.size == ref.footer_length
    _expect(ref, f"footer checksum {ref.footer_checksum:016x}", sound,""",
        ("damaged_runs::test_flipped_bits",),
    ),
    Plant(
        "a_chunk_of_the_right_length_is_believed",
        "chunks",
        "if data.size != length or actual != expected:",
        "if data.size != length and actual != expected:",
        ("damaged_runs::test_flipped_bits",),
    ),
    Plant(
        "a_file_of_the_cache_is_believed",
        "cache_files",
        "verify = not mapped or self._verified.get(key) != _mark(status)",
        "verify = False",
        ("cached_runs::test_a_damaged_file_of_the_cache_is_not_used",),
    ),
    Plant(
        "what_a_compaction_reads_of_the_cache_may_change_under_it",
        "cached_run",
        "data = self._derived.find(self._key, part, copied=self._copied)",
        "data = self._derived.find(self._key, part)",
        ("cached_runs::test_no_byte_that_a_compaction_holds_lies_in_a_file_of_the_cache",),
    ),
    Plant(
        "an_index_or_filter_of_the_right_length_is_believed",
        "run_reader",
        "if data.size != place.length or checksum != place.checksum:",
        "if data.size != place.length and checksum != place.checksum:",
        ("damaged_runs::test_flipped_bits",),
    ),
    Plant(
        "the_checksum_of_metadata_is_not_compared",
        "frame",
        "if expected != actual:",
        "if len(expected) != len(actual):",
        ("frames::test_every_flipped_bit_is_found",),
    ),
    Plant(
        "of_a_staged_file_only_the_length_counts",
        "vouched",
        "if actual != expected:",
        "if actual.length != expected.length:",
        ("sinks_vouched::test_no_damaged_file_is_published_by_a_sink_alone",),
    ),
    Plant(
        "a_staged_file_that_was_checked_once_is_read_again",
        "vouched",
        """        return self._checked(name)[0] if name in self._sums else self._inner.get(name)
""",
        """        if name in self._sums:
            self._checked(name)
        return self._inner.get(name)
""",
        ("sinks_vouched::test_bytes_that_were_checked_are_those_that_are_given_out",),
    ),
    Plant(
        "sinks_are_given_files_before_all_are_checked",
        "publisher",
        """            blobs.check_all()
            for outlet""",
        """            for outlet""",
        ("staged::test_damage_to_the_file_of_one_task_keeps_all_sinks_from_publishing",),
    ),
    Plant(
        "of_rows_between_operators_only_the_end_is_checked",
        "staging",
        "for number in (part, len(self.pieces) - 1):",
        "for number in (len(self.pieces) - 1,):",
        ("staged::test_no_operator_reads_damaged_rows_of_the_one_before[split]",),
    ),
    Plant(
        "an_edit_does_not_vouch_for_its_output",
        "epochs",
        "            sums=sums,\n",
        "            sums=sums[:0],\n",
        ("staged::test_a_driver_publishes_no_damaged_output",),
    ),
    Plant(
        "a_compaction_believes_what_was_verified_before",
        "compactor",
        "open_runs.afresh().sources_of(proposal.runs, manifest)",
        "open_runs.sources_of(proposal.runs, manifest)",
        ("changed_on_disk::test_what_replaces_runs_verifies_every_chunk_again",),
    ),
    Plant(
        "a_run_of_another_version_is_taken_for_ours",
        "footer",
        "claimed == expected, str(claimed))",
        "claimed[:3] == expected[:3], str(claimed))",
        ("hostile::test_a_footer_of_something_else",),
    ),
)
