"""Which tests hold what the pages of `docs/` say, by page and heading."""

CLAIMS = {
    "data.md": {
        "Sources": (
            "test_part_names.py::test_every_format_that_is_read_has_its_endings_and_others_are_told",
            "test_part_names.py::test_a_name_that_is_not_utf_8_is_an_image_like_others",
            "test_background.py::test_every_reader_of_a_dataset_sees_its_background",
            "test_background.py::test_none_drops_alpha_as_torchvision_does",
            "test_pixels.py::test_samples_of_an_unknown_range_are_refused_with_it",
            "test_decode.py::test_a_small_file_that_claims_a_giant_image_is_refused_before_memory_is_taken",
            "test_pixels.py::test_memory_is_that_of_one_image_and_a_bounded_number_of_decoded_ones",
        ),
        "Which part is which": (
            "test_part_names.py::test_parts_of_an_image_folder_have_many_names",
            "test_part_names.py::test_parts_of_files_have_many_names",
            "test_inspect.py::test_what_is_odd_about_the_files_stands_in_the_table_and_in_the_totals",
            "test_part_names.py::test_held_out_images_by_other_names_are_told",
            "test_part_names.py::test_a_circle_of_links_is_not_followed_and_links_to_one_file_are_told",
            "test_parquet.py::test_the_manifest_of_an_ingest_says_which_files_count",
            "test_webdataset.py::test_images_that_dots_in_their_names_leave_out_are_counted",
        ),
        "Labels": (
            "test_subset.py::test_labels_can_be_the_index_or_nothing",
            "test_parquet.py::test_what_the_settings_name_must_be_there",
        ),
        "A part of the images": (
            "test_subset.py::test_windows_of_the_draw_share_no_image_and_use_all",
            "test_subset.py::test_a_list_names_images_in_many_ways_and_their_order_stays",
            "test_subset.py::test_a_balanced_limit_gives_every_class_as_many_and_the_rest_to_the_first",
        ),
        "Several datasets": (
            "test_combined.py::test_classes_are_merged_by_name_in_the_order_they_come",
            "test_combined.py::test_a_pair_is_the_images_at_one_place",
            "test_combined.py::test_a_common_setting_of_an_inner_source_changes_its_images_or_is_refused",
        ),
        "The catalog": ("test_catalog.py::test_own_entries_come_first_and_the_packaged_ones_stay",),
        "The order of samples": (
            "test_order.py::test_an_epoch_holds_no_sample_twice_and_leaves_out_less_than_a_batch_or_none",
            "test_order.py::test_ranks_laid_side_by_side_give_the_same_batch_at_any_world_size",
            "test_order.py::test_any_chain_of_restarts_with_other_ranks_consumes_what_an_undisturbed_run_does",
            "test_order.py::test_a_queue_for_each_lane_that_is_fed_with_windows_gives_the_batches",
            "test_order.py::test_a_window_has_all_rows_of_its_units_but_those_beyond_a_cut_of_lanes",
            "test_order.py::test_a_feistel_network_is_a_permutation_at_any_size",
            "test_order.py::test_an_exact_order_of_any_size_computes_only_the_rows_of_a_batch",
            "test_order.py::test_few_units_have_few_lanes_but_enough_for_the_workers",
            "test_reads.py::test_the_ratio_of_reads_is_that_of_the_units_in_the_windows",
            "test_reads.py::test_the_formula_of_the_shuffle_is_what_two_epochs_show",
            "test_reads.py::test_a_bad_layout_is_named_with_its_costs_and_the_way_out",
            "test_order_version.py::test_another_version_of_the_order_is_refused",
            "test_pipeline.py::test_pixels_and_order_are_those_of_one_process",
            "test_order.py::test_seed_epoch_and_dataset_each_give_another_order",
            "test_voc.py::test_an_image_of_another_size_gives_another_fingerprint",
            "test_file_list.py::test_what_is_in_the_images_is_not_in_the_fingerprint",
            "test_processes.py::test_a_killed_worker_is_replaced",
        ),
        "Noticing changes": (
            "test_versions.py::test_labels_of_a_parquet_file_are_in_the_content_and_not_in_the_order_of_samples",
            "test_versions.py::test_images_of_equal_size_that_are_replaced_or_swapped_are_another_version",
            "test_versions.py::test_a_copy_has_the_same_content_and_order_and_is_another_version",
            "test_versions.py::test_files_of_an_ingest_count_by_their_hashes_until_they_are_written_after_the_manifest",
            "test_versions.py::test_a_storage_without_times_is_asked_for_its_tags",
            "test_versions.py::test_a_start_does_not_ask_for_each_file_of_a_list",
        ),
        "Corrupt and missing images": (
            "test_images.py::test_a_corrupt_image_is_replaced_by_the_next_valid_one_of_its_unit_with_its_label",
        ),
        "Where pixels are worked on": (
            "test_pipeline.py::test_augmenting_on_the_device_changes_no_pixel",
            "test_pipeline.py::test_a_stream_larger_than_the_object_store_flows_through",
        ),
        "Evaluation": ("test_pipeline.py::test_plain_images_are_shared_out_in_dataset_order",),
    },
    "ingest.md": {
        "Ingest": (
            "test_ingest.py::test_files_keep_their_alpha_and_the_background_is_that_of_who_reads",
            "test_ingest.py::test_files_are_stored_byte_by_byte_and_broken_ones_are_listed",
            "test_ingest.py::test_pixels_read_back_equal_with_their_labels_and_classes",
        ),
        "Cut off, done, other settings": (
            "test_ingest.py::test_storage_that_returns_other_bytes_is_noticed",
            "test_ingest.py::test_a_start_that_was_killed_goes_on_and_ends_with_the_same_files",
            "test_ingest.py::test_a_finished_one_says_so_and_changes_nothing",
            "test_ingest.py::test_unfinished_files_go_once_they_are_left_behind",
            "test_ingest.py::test_other_settings_or_images_are_refused_with_what_differs",
            "test_ingest.py::test_a_folder_of_other_files_is_left_alone",
            "test_ingest.py::test_a_file_with_another_footer_is_refused_and_written_again",
            "test_ingest.py::test_verifying_finds_a_single_bit_that_opening_does_not",
        ),
        "Checking a dataset": ("test_inspect.py::test_each_odd_image_has_one_line_that_says_why",),
    },
    "runs.md": {
        "What is measured": (
            "test_fitting.py::test_unlabelled_images_are_trained_on_and_what_is_left_out_is_said",
            "test_evaluate.py::test_one_that_fails_costs_no_other_its_result_and_the_next_start_measures_what_is_missing",
            "test_evaluate.py::test_results_add_up_and_belong_to_their_checkpoint_settings_and_images",
            "test_extract.py::test_other_images_are_extracted_to_a_file_of_their_own",
            "test_page.py::test_a_number_has_its_own_title_and_unit",
        ),
    },
    "transforms.md": {
        "Transforms": (
            "test_view.py::test_a_samples_views_do_not_depend_on_its_batch",
            "test_every_transform.py::test_a_recipe_of_all_gives_each_sample_its_own_views",
            "test_every_transform.py::test_floats_do_not_depend_on_the_number_of_threads",
        ),
    },
    "views.md": {
        "Views": (
            "test_recipes.py::test_a_samples_views_and_extras_do_not_depend_on_its_batch",
            "test_view.py::test_floats_do_not_depend_on_the_number_of_threads",
            "test_pipeline.py::test_pixels_and_order_are_those_of_one_process",
        ),
        "Recipes": (
            "test_recipes.py::test_shared_recipes_come_to_the_views_of_papers",
            "test_view.py::test_evaluation_resizes_and_takes_the_centre",
        ),
        "A recipe of your own": (
            "test_ranges.py::test_numbers_of_ones_own_components_are_finite_at_least",
            "test_sizes.py::test_a_method_of_ones_own_decides_by_its_default",
            "test_notebook.py::test_views_are_those_of_the_methods_recipe_by_seed_epoch_and_index",
        ),
    },
}
