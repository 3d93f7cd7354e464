"""Bugs by which workers or their coordinator take what belongs to another try or attempt, or wait for what never comes."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "rows_of_a_try_that_was_given_up_are_kept",
        "pieces",
        """            if nonce != self._nonce:
                raise NotKept("another try has begun")
            piece = self._pieces.setdefault(key, _Kept())
""",
        """            if not nonce:
                raise NotKept("another try has begun")
            piece = self._pieces.setdefault(key, _Kept())
""",
        (
            "workers_pieces::test_rows_of_other_tries_are_neither_taken_nor_given",
            "workers_reader::test_what_is_pushed_is_kept_and_of_another_try_refused",
        ),
    ),
    Plant(
        "the_budget_of_rows_in_memory_is_ignored",
        "pieces",
        "at = MEMORY if length <= self._budget_bytes else DISK",
        "at = MEMORY if length or self._budget_bytes else DISK",
        ("workers_pieces::test_rows_stay_in_memory_up_to_the_budget_and_then_go_to_disk",),
    ),
    Plant(
        "what_a_failed_write_left_moves_the_rows_after_it",
        "pieces",
        "        written = os.pwrite(fd, view, at)\n",
        "        written = os.write(fd, view)\n",
        ("workers_pieces::test_what_a_write_that_failed_has_left_moves_nothing",),
    ),
    Plant(
        "pieces_are_read_in_the_order_in_which_they_came",
        "piece_reader",
        "for piece in sorted(pieces, key=lambda piece: piece.key.partition):",
        "for piece in pieces:",
        (
            "workers_reader::test_rows_come_by_partition_and_in_each_in_their_order_however_they_are_named",
            "workers_engine::test_what_workers_give_is_what_one_process_gives",
        ),
    ),
    Plant(
        "who_waits_for_rows_goes_on_waiting_when_the_try_is_given_up",
        "piece_reader",
        "                self._wait[1]()\n",
        "                self._given_up = nonce\n",
        ("workers_reader::test_who_waits_for_a_worker_that_answers_nothing_can_be_interrupted",),
    ),
    Plant(
        "all_attempts_of_a_partition_share_a_piece",
        "pieces",
        """            piece = self._pieces.setdefault(key, _Kept())
            at =""",
        """            key = PieceKey(key.exchange, key.partition, "")
            piece = self._pieces.setdefault(key, _Kept())
            at =""",
        ("workers_reader::test_what_one_attempt_pushed_is_not_read_for_another",),
    ),
    Plant(
        "an_older_attempt_takes_the_place_of_a_newer",
        "coordinator",
        "if message.attempt <= member.attempt:",
        "if message.attempt == member.attempt:",
        ("workers_coordinator::test_an_older_attempt_that_comes_late_is_fenced_off_and_hears_of_the_query",),
    ),
    Plant(
        "an_answer_counts_whoever_gives_it",
        "requests",
        "if self._workers.get(answer.id) == worker:",
        "if worker >= 0 and answer.id in self._workers:",
        ("workers_coordinator::test_an_answer_counts_once_and_only_from_who_owes_it",),
    ),
    Plant(
        "a_silent_worker_is_not_missed",
        "coordinator",
        "if member.channel is not None and now_s - member.heard_s > self._silent_s",
        "if member.channel is not None and now_s - member.heard_s > self._silent_s * 100",
        ("workers_coordinator::test_a_worker_that_neither_reads_nor_speaks_is_lost_although_a_command_waits_to_be_sent",),
    ),
    Plant(
        "a_lost_answer_is_waited_for",
        "requests",
        "if number <= beat.seen and number not in beat.open:",
        "if number < beat.seen and number not in beat.open:",
        ("workers_coordinator::test_a_command_or_an_answer_that_got_lost_fails_the_try",),
    ),
    Plant(
        "a_beat_waits_for_a_worker_that_does_not_read",
        "coordinator",
        """                channel.offer(beat)
""",
        """                channel.send(beat)
""",
        ("workers_coordinator::test_a_worker_that_neither_reads_nor_speaks_is_lost_although_a_command_waits_to_be_sent",),
    ),
    Plant(
        "an_operator_lives_on_from_one_command_to_the_next",
        "worker_kit",
        "        operator: KeyedOperator = self.load(self.operators[name])\n",
        "        operator: KeyedOperator = vars(self).setdefault(name, self.load(self.operators[name]))\n",
        ("workers_engine::test_what_workers_give_is_what_one_process_gives",),
    ),
    Plant(
        "a_command_of_an_abandoned_try_is_run",
        "commands",
        "        if begin is None or begin.nonce != command.nonce:\n",
        "        if begin is None:\n",
        ("workers_worker::test_what_comes_late_of_another_try_is_not_run",),
    ),
    Plant(
        "a_worker_runs_on_the_manifest_that_it_happens_to_have",
        "commands",
        "    if manifest is None or manifest.chain != begin.chain:\n",
        "    if manifest is None:\n",
        ("workers_worker::test_a_worker_refuses_a_manifest_that_it_cannot_know",),
    ),
    Plant(
        "a_command_that_comes_late_is_taken",
        "worker",
        "            if number <= self._newest:\n                return False\n            self._newest = number\n",
        "            self._newest = max(self._newest, number)\n",
        ("workers_worker::test_what_comes_late_of_another_try_ends_not_the_present_one",),
    ),
    Plant(
        "a_client_that_does_not_know_the_secret_is_let_in",
        "channel",
        """raise Disconnected("a process that does not know the secret")""",
        """connection.settimeout(HANDSHAKE_S)""",
        (
            "workers_channel::test_a_client_that_does_not_know_the_secret_is_refused",
            "workers_channel::test_a_recorded_handshake_cannot_be_replayed",
        ),
    ),
    Plant(
        "an_attempt_that_was_replaced_returns",
        "coordinator",
        """        self._fenced[channel] = worker, member.job
        _insist(channel, Fenced())
""",
        """        channel.close()
""",
        ("workers_coordinator::test_the_newest_attempt_has_the_place_and_the_older_one_waits_without_it",),
    ),
    Plant(
        "what_a_worker_must_know_is_dropped_where_a_beat_is_being_sent",
        "coordinator",
        """    if not sent:
        channel.close()
""",
        """    if not sent and isinstance(message, Beat):
        channel.close()
""",
        (
            "workers_coordinator::test_a_duplicate_that_cannot_be_told_to_end_is_cut_off",
            "workers_coordinator::test_an_attempt_that_cannot_be_told_that_it_is_fenced_off_is_cut_off",
        ),
    ),
    Plant(
        "rows_that_were_damaged_are_used",
        "piece_reader",
        "    if actual != segment.checksum:\n",
        "    if actual < 0:\n",
        (
            "workers_reader::test_a_bit_that_changes_where_rows_are_kept_is_found_and_named",
            "workers_faults::test_rows_that_are_damaged_where_a_worker_keeps_them_are_made_anew",
        ),
    ),
    Plant(
        "who_keeps_rows_vouches_for_them",
        "pieces",
        "length, stream.rows, stream.checksum)",
        "length, stream.rows, checksum_of(stream.data))",
        ("workers_reader::test_a_bit_that_changes_on_the_way_from_a_task_is_found",),
    ),
    Plant(
        "a_message_that_was_damaged_is_read",
        "channel",
        "            if xxhash.xxh3_64_intdigest(body) != checksum:\n",
        "            if not checksum:\n",
        ("workers_channel::test_a_message_of_which_any_bit_was_changed_on_its_way_is_not_read",),
    ),
    Plant(
        "a_worker_blames_its_driver_for_its_own_pause",
        "worker",
        "                self._heard_s += now_s - beaten_s\n",
        "                beaten_s += now_s - beaten_s\n",
        ("workers_worker::test_a_worker_that_was_stopped_itself_does_not_take_its_driver_for_gone",),
    ),
    Plant(
        "a_worker_outlives_its_driver",
        "worker",
        "            if now_s - self._heard_s > self._alone_s:\n",
        "            if now_s - self._heard_s > self._alone_s * 10:\n",
        ("workers_worker::test_a_worker_that_was_stopped_itself_does_not_take_its_driver_for_gone",),
    ),
)
