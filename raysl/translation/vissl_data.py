"""VISSL's DATA as raysl's `data`."""

from raysl.config.config_files import CATALOG_FILE, packaged_folder, read_file
from raysl.translation.course import Batch
from raysl.translation.translated import Translation
from raysl.translation.vissl_settings import location

TRAIN, TEST = "DATA.TRAIN", "DATA.TEST"
RENAMED = {
    "google-imagenet1k-per01": "imagenet1k_1percent",
    "google-imagenet1k-per10": "imagenet1k_10percent",
    "imagenet1k-per01": "imagenet1k_pirl_1percent",
    "imagenet1k-per10": "imagenet1k_pirl_10percent",
}
"""Names of VISSL's catalog that raysl's has under others."""
UNUSED = (
    "BASE_DATASET COLLATE_FUNCTION COLLATE_FUNCTION_PARAMS MMAP_MODE COPY_DESTINATION_DIR DEFAULT_GRAY_IMG_SIZE "
    "INPUT_KEY_NAMES TARGET_KEY_NAMES ENABLE_QUEUE_DATASET USE_STATEFUL_DISTRIBUTED_SAMPLER"
)


def translate_data(out: Translation, batch: Batch) -> None:
    """Translate the images, the batch and the workers."""
    vissl = out.vissl
    _images(out)
    if vissl.text(f"{TRAIN}.LABEL_TYPE") in ("sample_index", "zero"):
        # VISSL's losses read each image's index; here benchmarks measure by the labels of the dataset
        out.drops(f"{TRAIN}.LABEL_TYPE")
    else:
        out.maps(f"{TRAIN}.LABEL_TYPE", {"data.label_type": "standard"})
    note = f"{batch.per_worker} of each of {batch.workers} processes, of all together here"
    out.maps(f"{TRAIN}.BATCHSIZE_PER_REPLICA", {"train.batch_size": batch.size}, note if batch.workers > 1 else "")
    out.maps("DISTRIBUTED.NUM_NODES", {"train.workers": batch.workers})
    out.maps("DISTRIBUTED.NUM_PROC_PER_NODE", {"train.workers": batch.workers})
    out.maps(f"{TRAIN}.DROP_LAST", {"data.drop_last": vissl.flag(f"{TRAIN}.DROP_LAST")})
    if vissl.whole(f"{TRAIN}.DATA_LIMIT") > 0:
        out.maps(f"{TRAIN}.DATA_LIMIT", {"data.limit": vissl.whole(f"{TRAIN}.DATA_LIMIT")})
        if vissl.any(f"{TRAIN}.DATA_LIMIT_SAMPLING.IS_BALANCED"):
            out.maps(f"{TRAIN}.DATA_LIMIT_SAMPLING.IS_BALANCED", {"data.balanced": True})
    else:
        out.drops(f"{TRAIN}.DATA_LIMIT {TRAIN}.DATA_LIMIT_SAMPLING")
    for part in (TRAIN, TEST):
        out.drops(UNUSED, below=f"{part}.")


def _images(out: Translation) -> None:
    vissl = out.vissl
    sources = [str(source) for source in vissl.items(f"{TRAIN}.DATA_SOURCES")]
    names = [str(name) for name in vissl.items(f"{TRAIN}.DATASET_NAMES")]
    paths = [str(path) for path in vissl.items(f"{TRAIN}.DATA_PATHS")]
    if len(sources) > 1:
        out.lacks(f"{TRAIN}.DATA_SOURCES", "one source of several is left to give: data=paired has several")
    source = sources[0] if sources else "disk_folder"
    name = RENAMED.get(names[0], names[0].removesuffix("_folder").removesuffix("_filelist").lower()) if names else ""
    path = location(paths[0]) if paths else None
    if source == "synthetic":
        out.maps(f"{TRAIN}.DATA_SOURCES", {"data.name": "synthetic"})
    elif path is not None and source == "disk_filelist":
        out.maps(f"{TRAIN}.DATA_SOURCES", {"data.name": "file_list"})
        out.maps(f"{TRAIN}.DATA_PATHS", {"data.train": path})
        labels = [location(str(label)) for label in vissl.items(f"{TRAIN}.LABEL_PATHS")]
        if labels and labels[0] is not None:
            out.maps(f"{TRAIN}.LABEL_PATHS", {"data.train_labels": labels[0]})
    elif path is not None and source == "disk_folder":
        out.maps(f"{TRAIN}.DATA_SOURCES", {"data.name": "image_folder"})
        out.maps(f"{TRAIN}.DATA_PATHS", {"data.train": path})
        held_out = [location(str(item)) for item in vissl.items(f"{TEST}.DATA_PATHS")]
        if held_out and held_out[0] is not None:
            out.maps(f"{TEST}.DATA_PATHS", {"data.test": held_out[0]})
    elif name in read_file(packaged_folder() / CATALOG_FILE):
        note = "raysl's catalog looks for it below $RAYSL_DATA, ~/data by default; or give data=image_folder data.path="
        out.drops(f"{TRAIN}.DATA_SOURCES")
        out.maps(f"{TRAIN}.DATASET_NAMES", {"data.name": "catalog", "data.dataset": name}, note)
        return
    else:
        out.maps(f"{TRAIN}.DATA_SOURCES", {"data.name": "image_folder"}, "give data.path=FOLDER")
        out.lacks(f"{TRAIN}.DATASET_NAMES", "raysl's catalog has no such name; give data.path=")
        return
    out.drops(f"{TRAIN}.DATASET_NAMES")
