"""A list of faults with the name of a test for each. A new fault needs an entry."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

FAULTS = {
    "an empty file": (
        "faults/test_gguf_parser.py",
        "test_an_empty_file_is_refused",
    ),
    "a file of two bytes": (
        "faults/test_gguf_parser.py",
        "test_a_file_of_two_bytes_is_refused",
    ),
    "a wrong magic number": ("faults/test_gguf_parser.py", "test_a_wrong_magic_is_refused_and_says_so"),
    "big-endian byte order": (
        "faults/test_gguf_parser.py",
        "test_a_little_endian_file_that_says_it_is_big_endian_is_refused",
    ),
    "an unknown GGUF version": (
        "faults/test_gguf_parser.py",
        "test_unknown_versions_are_refused",
    ),
    "a header that is cut off anywhere": (
        "faults/test_gguf_parser.py",
        "test_a_header_truncated_at_every_byte_is_refused",
    ),
    "a tensor count larger than the file": (
        "faults/test_gguf_parser.py",
        "test_more_tensors_than_fit_are_refused",
    ),
    "a metadata count larger than the file": (
        "faults/test_gguf_parser.py",
        "test_more_metadata_than_fits_is_refused",
    ),
    "a key with a huge declared length": (
        "faults/test_gguf_parser.py",
        "test_a_key_that_claims_to_be_huge_is_refused",
    ),
    "a string with a huge declared length": (
        "faults/test_gguf_parser.py",
        "test_a_string_that_claims_to_be_huge_is_refused",
    ),
    "an array with a huge declared length": (
        "faults/test_gguf_parser.py",
        "test_an_array_that_claims_to_be_huge_is_refused",
    ),
    "more float64 values than the file has room for": (
        "faults/test_gguf_parser.py",
        "test_five_million_doubles_in_five_megabytes_are_refused",
    ),
    "nested arrays": (
        "faults/test_gguf_parser.py",
        "test_nested_arrays_are_refused",
    ),
    "an unknown value type": (
        "faults/test_gguf_parser.py",
        "test_an_unknown_value_type_is_refused",
    ),
    "a duplicate key": (
        "faults/test_gguf_parser.py",
        "test_a_duplicate_key_is_refused",
    ),
    "an empty key": (
        "faults/test_gguf_parser.py",
        "test_an_empty_key_is_refused",
    ),
    "keys and tokens that are not valid text": (
        "faults/test_gguf_parser.py",
        "test_a_key_that_is_not_printable_ascii_is_refused",
    ),
    "an invalid alignment": (
        "faults/test_gguf_parser.py",
        "test_an_alignment_that_is_not_a_power_of_two_up_to_a_mebibyte_is_refused",
    ),
    "an invalid number of dimensions": (
        "faults/test_gguf_parser.py",
        "test_a_number_of_dimensions_outside_1_to_4_is_refused",
    ),
    "a dimension of zero": (
        "faults/test_gguf_parser.py",
        "test_a_dimension_of_zero_is_refused",
    ),
    "a dimension larger than 63 bits": (
        "faults/test_gguf_parser.py",
        "test_a_dimension_beyond_63_bits_is_refused",
    ),
    "dimensions whose product overflows": (
        "faults/test_gguf_parser.py",
        "test_a_product_that_wraps_in_64_bits_is_refused",
    ),
    "a row whose stride overflows": (
        "faults/test_gguf_parser.py",
        "test_a_row_whose_stride_wraps_is_refused",
    ),
    "a size that overflows when it is padded": (
        "faults/test_gguf_parser.py",
        "test_a_size_that_wraps_when_it_is_padded_is_refused",
    ),
    "a row that is not a multiple of the block size": (
        "faults/test_gguf_parser.py",
        "test_a_row_that_is_not_a_whole_number_of_blocks_is_refused",
    ),
    "an unknown or removed tensor type": (
        "faults/test_gguf_parser.py",
        "test_an_unknown_or_removed_tensor_type_that_no_offset_explains_is_refused",
    ),
    "an offset beyond the file": (
        "faults/test_gguf_parser.py",
        "test_an_offset_beyond_any_file_is_refused",
    ),
    "an offset that is not aligned": (
        "faults/test_gguf_parser.py",
        "test_a_misaligned_offset_is_refused",
    ),
    "overlapping tensors": (
        "faults/test_gguf_parser.py",
        "test_overlapping_tensors_are_refused",
    ),
    "a gap between tensors": (
        "faults/test_gguf_parser.py",
        "test_a_hole_between_tensors_is_refused",
    ),
    "two tensors with one name": (
        "faults/test_gguf_parser.py",
        "test_a_duplicate_tensor_name_is_refused",
    ),
    "tensor data that is one byte short": (
        "faults/test_gguf_parser.py",
        "test_data_that_is_one_byte_short_is_refused",
    ),
    "bytes after the tensor data": (
        "faults/test_gguf_parser.py",
        "test_a_trailing_archive_is_refused",
    ),
    "tensor names that are dangerous as paths or on a terminal": (
        "faults/test_gguf_parser.py",
        "test_tensor_names_that_are_not_1_to_127_printable_ascii_bytes_are_refused",
    ),
    "a vocabulary array of the wrong type": (
        "faults/test_gguf_parser.py",
        "test_tokenizer_arrays_of_the_wrong_element_type_are_flagged",
    ),
    "byte tokens that are not bytes": (
        "faults/test_gguf_parser.py",
        "test_invalid_byte_tokens_are_flagged",
    ),
    "an incomplete or inconsistent split set": (
        "faults/test_gguf_parser.py",
        "test_a_split_set_with_any_fault_is_refused_as_a_whole",
    ),
    "a file that changes while it is read": (
        "faults/test_source_files.py",
        "test_a_file_that_changes_while_it_is_read_is_refused_and_nothing_is_stored",
    ),
    "a path that is not a regular file": (
        "faults/test_source_files.py",
        "test_a_path_that_is_not_a_file_is_refused_before_it_is_opened",
    ),
    "a sparse file of a terabyte": (
        "faults/test_source_files.py",
        "test_a_sparse_file_takes_bounded_memory_and_is_stored_once",
    ),
    "metadata at the limits of its types": (
        "faults/test_gguf_parser.py",
        "test_numbers_at_the_limits_of_their_types_are_read_unchanged",
    ),
    "a million tensors": (
        "faults/test_gguf_parser.py",
        "test_a_million_tensors_are_read_within_a_minute_and_two_gigabytes",
    ),
    "a small blob that decodes to an unlimited size": (
        "faults/test_blob_store.py",
        "test_a_bomb_in_a_stored_file_is_refused",
    ),
    "a blob with a wrong declared size": (
        "faults/test_blob_store.py",
        "test_a_row_that_claims_a_terabyte_is_detected",
    ),
    "a blob that requests a huge decoding window": (
        "store/test_codec_faults.py",
        "test_a_window_above_8_mib_is_refused_and_one_of_8_mib_is_not",
    ),
    "a truncated blob": (
        "faults/test_blob_store.py",
        "test_a_truncated_blob_is_detected_without_reading_it",
    ),
    "bytes after the end of a blob": (
        "faults/test_blob_store.py",
        "test_bytes_after_a_stored_blob_are_detected_without_reading_it",
    ),
    "a flipped bit in a blob": (
        "assembly/test_stream.py",
        "test_a_flipped_bit_stops_the_stream_before_its_bytes_go_out",
    ),
    "a malformed digest": (
        "faults/test_blob_store.py",
        "test_only_64_lower_case_hexadecimal_characters_are_a_digest",
    ),
    "concurrent writers of the same bytes": (
        "catalog/test_register.py",
        "test_a_blob_recorded_by_another_ingest_keeps_its_row_and_the_new_file_is_returned",
    ),
    "a corrupt blob whose bytes are stored again": (
        "catalog/test_register.py",
        "test_a_corrupt_blob_is_replaced_when_its_bytes_are_stored_again",
    ),
    "a row without its file": (
        "assembly/test_stream.py",
        "test_a_removed_file_is_missing",
    ),
    "a file without its row": (
        "faults/test_blob_store.py",
        "test_a_file_without_a_row_is_reported_and_swept_only_after_the_grace_period",
    ),
    "a blob's path that is occupied by something else": (
        "faults/test_blob_store.py",
        "test_a_blob_whose_path_is_occupied_is_refused_and_restored",
    ),
    "a store that cannot be written": (
        "faults/test_blob_store.py",
        "test_a_home_that_cannot_be_a_folder_gives_a_one_line_error",
    ),
    "a sweep while the same bytes are stored again": (
        "faults/test_concurrent_sweep.py",
        "test_every_order_of_a_sweep_and_two_writers_keeps_their_bytes",
    ),
    "a sweep that is killed": (
        "faults/test_concurrent_sweep.py",
        "test_every_order_of_a_dead_sweep_its_successor_and_a_writer_keeps_the_bytes",
    ),
    "two concurrent sweeps": (
        "faults/test_sweep.py",
        "test_a_second_concurrent_sweep_is_refused",
    ),
    "an ingest that takes longer than the sweep's grace period": (
        "faults/test_sweep.py",
        "test_a_renewed_lease_protects_beyond_the_grace_period",
    ),
    "a request for content that the account may not see": (
        "search/test_fitting.py",
        "test_an_unknown_or_hidden_name_finds_nothing_and_the_nearest_is_named",
    ),
    "a NUL character in a text": (
        "catalog/test_jobs.py",
        "test_any_text_in_arguments_reads_back_unchanged",
    ),
    "a text that is too long": (
        "catalog/test_register.py",
        "test_a_name_that_cannot_be_stored_is_refused_and_nothing_is_written",
    ),
    "a value of the wrong SQL type": (
        "catalog/test_migrations.py",
        "test_every_created_or_migrated_table_is_strict",
    ),
    "a number larger than 31 bits": (
        "catalog/test_tables.py",
        "test_integers_have_64_bits_except_those_that_stay_small",
    ),
    "a number larger than 63 bits": (
        "search/test_parse.py",
        "test_a_number_beyond_63_bits_is_refused",
    ),
    "NaN in tables and in JSON": (
        "catalog/test_tables.py",
        "test_nan_is_never_stored_in_a_table",
    ),
    "upper and lower case in patterns": (
        "search/test_models.py",
        "test_a_pattern_means_the_same_on_every_database",
    ),
    "a foreign key to a missing row": (
        "catalog/test_engine.py",
        "test_every_connection_of_both_engines_has_the_pragmas",
    ),
    "the order of missing values, and division by zero": (
        "catalog/test_queries.py",
        "test_the_ranking_descends_by_theta_and_ends_with_models_without_theta",
    ),
    "concurrent writers of the database": (
        "catalog/test_engine.py",
        "test_eight_concurrent_writers_lose_no_count",
    ),
    "counts that several writers increase": (
        "catalog/test_engine.py",
        "test_eight_concurrent_writers_lose_no_count",
    ),
    "two workers that take the same job": (
        "catalog/test_jobs.py",
        "test_concurrent_threads_never_claim_the_same_job",
    ),
    "rows that are locked in different orders": (
        "ingest/test_experts.py",
        "test_two_ingests_of_models_that_share_experts_in_opposite_orders_both_finish",
    ),
    "two concurrent migrations": (
        "catalog/test_migrations.py",
        "test_four_processes_open_the_same_new_registry_concurrently_and_write_to_it",
    ),
    "a schema that is newer than the program": (
        "catalog/test_migrations.py",
        "test_a_database_of_a_newer_version_is_refused_and_not_changed",
    ),
    "SQL in user input": (
        "catalog/test_cursor.py",
        "test_a_row_id_that_is_not_a_number_is_refused",
    ),
    "a page far down a list": (
        "search/test_query_plans.py",
        "test_a_late_page_costs_no_more_than_the_first",
    ),
    "a chunk out of order": (
        "ingest/test_uploads.py",
        "test_a_chunk_out_of_order_writes_nothing_and_the_error_has_the_offset",
    ),
    "a chunk whose answer was lost": (
        "ingest/test_uploads.py",
        "test_any_interruptions_and_repeats_give_the_same_bytes",
    ),
    "two clients at one upload": (
        "ingest/test_uploads.py",
        "test_two_clients_cannot_write_one_upload_concurrently",
    ),
    "a chunk that was damaged in transit": (
        "ingest/test_uploads.py",
        "test_a_damaged_chunk_does_not_change_the_upload",
    ),
    "an upload whose bytes differ from the declared digest": (
        "ingest/test_uploads.py",
        "test_an_upload_with_the_wrong_digest_stays_until_it_expires",
    ),
    "a client that disconnects during an upload": (
        "ingest/test_push_faults.py",
        "test_a_push_over_a_failing_connection_arrives_identical",
    ),
    "a client that sends or reads slowly": (
        "web/test_connection.py",
        "test_a_body_that_takes_too_long_is_answered_by_408",
    ),
    "a wrong Content-Length": (
        "web/test_connection.py",
        "test_invalid_http_is_refused",
    ),
    "a request larger than the limit": (
        "ingest/test_uploads.py",
        "test_an_upload_over_a_limit_is_refused_before_a_file_is_created",
    ),
    "a form with many parts": (
        "web/test_security.py",
        "test_a_form_of_many_parts_is_refused",
    ),
    "a hostile file name": (
        "web/test_downloads.py",
        "test_a_file_with_an_odd_name_is_downloaded_under_a_plain_name",
    ),
    "invalid ranges": (
        "web/test_downloads.py",
        "test_an_invalid_range_gives_the_whole_file",
    ),
    "a download that changes between two ranges": (
        "web/test_downloads.py",
        "test_a_range_of_a_changed_file_gives_the_whole_file_or_is_refused",
    ),
    "a client that stops reading": (
        "web/test_connection.py",
        "test_a_client_that_does_not_read_is_cut_off",
    ),
    "a blob that is found corrupt while it is sent": (
        "web/test_downloads_faulty.py",
        "test_a_corrupt_blob_cuts_the_answer_off_and_is_set_aside",
    ),
    "a file in a thousand pieces": (
        "assembly/test_clip.py",
        "test_adjacent_parts_make_the_whole",
    ),
    "a compressed request body": (
        "web/api/test_hostile.py",
        "test_a_compressed_body_is_refused",
    ),
    "a mistyped token": (
        "test_tokens.py",
        "test_a_token_with_one_wrong_character_is_refused_by_its_checksum",
    ),
    "a token that is revoked or expired": (
        "catalog/test_accounts.py",
        "test_a_revoked_token_is_refused",
    ),
    "a token used beyond its scopes, or for another account": (
        "web/test_account.py",
        "test_a_form_refuses_a_token_with_more_scopes_than_its_creator",
    ),
    "a token in a place where others can read it": (
        "test_token_leaks.py",
        "test_a_token_in_any_part_of_an_answer_is_detected",
    ),
    "a stolen copy of the database": (
        "catalog/test_accounts.py",
        "test_a_copy_of_the_database_has_no_usable_secret",
    ),
    "guessed tokens": (
        "catalog/test_accounts.py",
        "test_a_wrong_secret_and_an_unknown_id_are_both_refused",
    ),
    "a planted, stolen or ended session": (
        "catalog/test_accounts.py",
        "test_ending_a_session_deletes_it_and_its_page_tokens",
    ),
    "an unknown Host header": (
        "cli/test_serve.py",
        "test_clients_behind_a_proxy_are_never_local_users",
    ),
    "names and texts that contain markup or control characters": (
        "cli/test_console.py",
        "test_control_characters_become_visible",
    ),
    "a hostile chat template": (
        "validation/test_llama.py",
        "test_a_chat_template_is_never_executed_and_is_no_fault_of_the_weights",
    ),
    "a cross-site request": (
        "browser/test_contributing.py",
        "test_a_page_of_another_site_cannot_act_for_the_logged_in_account",
    ),
    "API answers that differ from the OpenAPI document": (
        "web/api/test_hostile.py",
        "test_any_text_anywhere_is_answered_without_a_server_error",
    ),
    "a disk that is full at any write": (
        "faults/test_failing_database.py",
        "test_a_database_that_is_full_at_any_page_loses_nothing",
    ),
    "a system call that fails at any time": (
        "faults/test_failing_disk.py",
        "test_a_disk_that_fails_once_loses_nothing",
    ),
    "a kill at any moment": (
        "faults/test_random_kills.py",
        "test_kills_at_random_moments_lose_nothing",
    ),
    "a kill while stored files are removed": (
        "faults/test_room_for_one.py",
        "test_kills_lose_no_shard_of_a_set_that_never_is_on_disk_together",
    ),
    "a shard of another set": (
        "ingest/test_shards.py",
        "test_a_shard_of_another_set_is_refused_with_its_first_difference_and_the_set_stays_as_it_was",
    ),
    "shards that are ingested at the same time": (
        "ingest/test_shards.py",
        "test_threads_that_ingest_different_shards_complete_one_model",
    ),
    "a file that is replaced before it is removed": (
        "ingest/test_shards.py",
        "test_a_file_that_was_replaced_after_it_was_stored_is_kept",
    ),
    "a full disk while a file is fetched": (
        "ingest/test_shards.py",
        "test_a_full_disk_is_reported_and_the_next_run_continues",
    ),
    "manifests of other tools that are huge, nested, not JSON, or name a file outside": (
        "ingest/test_tools.py",
        "test_each_manifest_that_cannot_be_used_gets_a_sentence_and_the_others_are_found",
    ),
    "a file of another tool whose bytes are not those of its digest": (
        "ingest/test_tools.py",
        "test_bytes_that_are_not_those_of_their_digest_are_refused",
    ),
    "a power cut at any moment": (
        "faults/test_powerloss.py",
        "test_every_state_after_a_power_cut_is_sound",
    ),
    "a requested shutdown": (
        "web/test_server.py",
        "test_a_download_that_runs_ends_before_the_server_does",
    ),
    "a disk that becomes read-only": (
        "faults/test_failing_database.py",
        "test_a_database_that_cannot_be_written_is_reported_and_still_read",
    ),
    "a request that costs too much to plan": (
        "compose/test_cost.py",
        "test_a_recipe_of_large_models_is_refused_before_any_of_their_tensors_is_read",
    ),
    "a token that creates or revokes more than its own scopes": (
        "web/test_token_rights.py",
        "test_a_token_revokes_only_itself_and_with_the_scope_tokens_its_descendants",
    ),
    "a blob whose bytes are right again after a read error": (
        "faults/test_recovered_blobs.py",
        "test_a_command_that_reads_a_repaired_blob_takes_it_back_into_use",
    ),
    "weights that are NaN or infinite": (
        "cli/test_push.py",
        "test_a_finding_that_must_be_accepted_ends_the_push_until_it_is",
    ),
    "other users of the machine that read the registry's files": (
        "test_private_files.py",
        "test_only_the_owner_can_access_a_new_registry",
    ),
    "a server that sends its answer byte by byte": (
        "client/test_connection.py",
        "test_a_server_that_sends_very_slowly_does_not_block_a_call",
    ),
    "a database whose schema differs from its revision": (
        "catalog/test_migrations.py",
        "test_a_schema_that_differs_from_its_recorded_revision_is_not_migrated",
    ),
    "wrong or missing bytes of an organ to which others are stored as a difference": (
        "faults/test_references.py",
        "test_a_faulty_parent_is_reported_with_its_dependants_and_healed_by_its_file",
    ),
    "wrong or missing bytes of an organ that is stored as a difference": (
        "faults/test_references.py",
        "test_a_faulty_child_is_reported_alone_and_is_stored_alone_again",
    ),
    "the removal of a model whose organs are the parents of others": (
        "faults/test_references.py",
        "test_a_removed_model_keeps_the_parents_of_others_until_these_are_gone",
    ),
    "a sweep, a repair, a backup, a removal, an ingest or another repack during a repack": (
        "faults/test_references.py",
        "test_other_work_at_any_step_of_a_repack_loses_nothing",
    ),
    "a sweep or a repack that takes the parents of a running ingest": (
        "faults/test_references.py",
        "test_other_work_at_any_step_of_an_ingest_against_parents_loses_nothing",
    ),
    "a sweep between the file of a repack and its row": (
        "faults/test_references.py",
        "test_only_the_announcement_of_a_repack_saves_its_files_from_a_sweep_before_their_rows",
    ),
    "a repack during a backup": (
        "faults/test_references.py",
        "test_a_repack_at_any_write_of_a_backup_leaves_the_copy_complete",
    ),
    "a repack and a sweep during a download": (
        "faults/test_references.py",
        "test_a_download_goes_on_while_a_repack_and_a_sweep_replace_its_files",
    ),
    "a hostile frame of a sparse plane": (
        "store/test_codec_sparse.py",
        "test_a_hostile_frame_is_refused",
    ),
    "a safetensors file with a hostile header": (
        "ingest/test_safetensors.py",
        "test_a_hostile_header_is_refused_before_memory_is_used",
    ),
    "an adapter in a pickle": (
        "ingest/test_peft.py",
        "test_a_pickle_is_never_read",
    ),
    "regular expressions and other hostile values in the configuration of an adapter": (
        "ingest/test_peft.py",
        "test_what_an_adapter_cannot_have_is_refused_with_a_sentence",
    ),
    "a worker of a fleet that dies in its work": (
        "catalog/test_fleet.py",
        "test_a_unit_whose_worker_died_is_claimed_again_and_the_dead_worker_cannot_end_it",
    ),
    "a file that kills every worker of a fleet": (
        "ingest/test_fleet.py",
        "test_a_unit_that_kills_its_workers_is_set_aside_and_the_rest_is_done",
    ),
    "a driver of a fleet that is stopped": (
        "ingest/test_fleet.py",
        "test_a_driver_that_is_stopped_returns_all_units_to_the_queue",
    ),
    "a task of a fleet that its scheduler lost": (
        "ingest/test_fleet_dask.py",
        "test_a_task_that_was_lost_is_submitted_again",
    ),
    "a fleet without a scheduler": (
        "ingest/test_fleet_dask.py",
        "test_without_a_scheduler_the_driver_waits_for_a_limited_time",
    ),
    "an address with a password in the plan of a fleet": (
        "ingest/test_fleet.py",
        "test_a_plan_that_is_not_valid_is_refused_with_one_sentence",
    ),
    "a changed byte in a PEFT folder": (
        "ingest/test_peft.py",
        "test_a_changed_byte_anywhere_in_the_two_files_is_refused_or_does_no_harm",
    ),
}
"""Each fault, with the file and the name of one test which shows that the program survives it."""


@pytest.mark.folder
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_test(fault: str) -> None:
    path, name = FAULTS[fault]
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
