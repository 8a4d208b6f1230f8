"""Which tests hold what the pages on transforms and views say of each transform."""

TRANSFORMS = {
    "RandomResizedCrop": (
        "test_functional.py::test_resized_crop_equals_torchvision",
        "test_transforms.py::test_random_resized_crop_has_torchvisions_distribution",
    ),
    "ShiftedCrop": (
        "test_shifted_crop.py::test_a_shifted_crop_is_a_slice_of_torchvisions_resized_crop",
        "test_shifted_crop.py::test_moves_are_as_often_of_each_length",
    ),
    "CenterCrop": ("test_transforms.py::test_center_crop_equals_torchvision",),
    "RandomCrop": ("test_random_crop.py::test_random_crop_equals_torchvisions_resize_and_crop",),
    "Canvas": ("test_random_crop.py::test_a_canvas_holds_the_image_at_its_place",),
    "functional.resize_larger_side": ("test_functional.py::test_the_larger_side_is_resized_as_torchvision_resizes",),
    "Tiles": ("test_tiles.py::test_tiles_equal_a_loop_over_cells",),
    "permutation_table": ("test_tiles.py::test_the_set_is_that_of_a_naive_greedy_search",),
    "HorizontalFlip": ("test_functional.py::test_flip_equals_torchvision",),
    "VerticalFlip": ("test_functional.py::test_a_flip_upside_down_equals_torchvision",),
    "Affine": ("test_functional.py::test_affine_equals_torchvision",),
    "RandomRotation90": ("test_rotation.py::test_each_image_turns_counter_clockwise_by_its_label_as_in_torchvision",),
    "RandomErasing": (
        "test_erasing.py::test_boxes_are_filled_as_torchvision_fills_them",
        "test_erasing.py::test_boxes_have_torchvisions_distribution",
    ),
    "ColorJitter": (
        "test_functional.py::test_blends_equal_torchvision",
        "test_functional.py::test_hue_equals_torchvision",
        "test_transforms.py::test_color_jitter_applies_each_images_own_order",
        "test_transforms.py::test_jitter_by_tensorflows_arithmetic_is_its_definition_pixel_by_pixel",
    ),
    "Grayscale": ("test_functional.py::test_grayscale_equals_torchvision",),
    "GaussianBlur": ("test_functional.py::test_blur_equals_torchvision",),
    "Solarize": ("test_functional.py::test_solarize_equals_torchvision",),
    "Posterize": ("test_color.py::test_posterize_equals_torchvision_on_uint8",),
    "Sharpness": ("test_color.py::test_sharpness_equals_torchvision_within_1e_6",),
    "Autocontrast": (
        "test_color.py::test_operations_without_parameters_equal_torchvision",
        "test_color.py::test_autocontrast_equals_torchvision_on_uint8_within_one_level",
    ),
    "Equalize": ("test_color.py::test_equalize_equals_torchvision_on_uint8",),
    "Invert": ("test_color.py::test_operations_without_parameters_equal_torchvision",),
    "RandomPhotometric": ("test_color.py::test_photometric_does_all_four_or_none_in_their_order",),
    "ToLab": (
        "test_color.py::test_lab_equals_the_definition_pixel_by_pixel",
        "test_color.py::test_lab_of_known_colours",
    ),
    "RandAugment": (
        "test_rand_augment.py::test_each_operation_equals_torchvision_at_its_magnitude",
        "test_rand_augment.py::test_rand_augment_draws_every_operation_and_sign_alike",
    ),
    "AutoAugment": (
        "test_rand_augment.py::test_policies_are_torchvisions",
        "test_rand_augment.py::test_auto_augment_draws_the_operations_of_its_policy_with_their_probabilities",
    ),
    "BlockMask": (
        "test_masking.py::test_block_masks_equal_a_loop_that_grows_one_alone",
        "test_masking.py::test_single_blocks_have_aspect_ratios_even_in_the_logarithm",
    ),
    "RandomMask": (
        "test_masking.py::test_a_random_mask_has_an_exact_share",
        "test_masking.py::test_a_random_mask_takes_each_patch_and_each_pair_as_often",
    ),
    "PartMask": (
        "test_masking.py::test_a_part_of_the_masked_patches_is_predicted_each_as_often",
        "test_masking.py::test_a_random_mask_takes_each_patch_and_each_pair_as_often",
    ),
    "PrefixMask": (
        "test_masking.py::test_a_prefix_mask_hides_what_follows_a_prefix_of_any_length_as_often",
        "test_masking.py::test_a_mask_does_not_depend_on_its_batch",
    ),
    "UnitMask": (
        "test_masking.py::test_a_unit_mask_takes_whole_squares_of_patches_each_as_often",
        "test_masking.py::test_simmims_mask_hides_30_of_49_squares_as_the_authors_code_does",
    ),
    "MultiBlockMask": (
        "test_multi_block.py::test_blocks_are_rectangles_within_their_ranges",
        "test_multi_block.py::test_a_context_is_a_square_less_the_targets",
    ),
    "InverseBlockMask": (
        "test_inverse_block.py::test_masks_equal_a_loop_over_patches_of_one_image",
        "test_inverse_block.py::test_masks_are_those_of_lightly_in_distribution",
    ),
    "CyclicMask": (
        "test_inverse_block.py::test_cyclic_masks_equal_a_loop_with_a_share_for_each_image",
        "test_inverse_block.py::test_a_cyclic_mask_takes_each_patch_as_often_and_shows_one_patch_at_least",
    ),
    "Mixup": (
        "test_mix.py::test_images_are_mixed_as_by_hand",
        "test_mix.py::test_mixup_shares_have_the_beta_distribution",
    ),
    "CutMix": (
        "test_mix.py::test_images_are_mixed_as_by_hand",
        "test_mix.py::test_cutmix_boxes_follow_the_rule_of_the_paper",
    ),
    "MixupOrCutMix": (
        "test_mix.py::test_labels_have_the_share_of_the_pixels",
        "test_mix.py::test_each_kind_of_mix_has_its_probability",
    ),
}
