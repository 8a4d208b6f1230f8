"""What the reader of a page is expected to have: runs, files and folders that no block of the page makes."""

IMAGES = "a folder of images"
FILE = "a file"
SWEEP = "a finished sweep"
PATH = "data.path=/path/to/images"
RESNET = ("simclr", PATH)
VIT = ("dino", PATH)
MINE = ("simclr", PATH, "name=mine", "backbone.depth=18", "train.batch_size=256", "train.epochs=100")

EVERYWHERE: dict[str, str | tuple[str, ...]] = {"runs/mine": MINE}
"""On all pages but README, which makes it: the run of the reader's images, by its settings."""

OWN: dict[str, dict[str, str | tuple[str, ...]]] = {
    "backbones.md": {"runs/quickstart": ("quickstart",), "runs/simclr": RESNET},
    "benchmarks.md": {
        "runs/mine/checkpoint_000000800": MINE,
        "runs/mine/checkpoint_000001600": MINE,
        "runs/simclr": RESNET,
        "runs/moco": ("moco", PATH),
    },
    "benchmarks-of-features.md": {"runs/vit": VIT},
    "benchmarks-that-train.md": {
        "runs/imagenet": ("simclr", "data.path=/imagenet"),
        "subsets/1percent.txt": FILE,
        "subsets/10percent.txt": FILE,
    },
    "callbacks.md": {"runs/quickstart": ("quickstart",)},
    "coming-from-vissl.md": {
        "vissl/simclr_8node_resnet.yaml": FILE,
        "simclr_8node_resnet.yaml": FILE,
        "my_overrides.yaml": FILE,
    },
    "command-line.md": {"runs/other": RESNET},
    "continue.md": {
        "mae_pretrain_vit_base.pth": FILE,
        "theirs.pt": FILE,
        "runs/mae": ("mae", PATH),
    },
    "write-a-source.md": {"images": "arrays"},
    "leaderboards.md": {"runs/first_sweep": SWEEP},
    "notebook.md": {"photos": IMAGES},
    "runs.md": {"runs/first": RESNET, "runs/first/checkpoint_000004000": RESNET},
    "weights.md": {
        "moco_v2_800ep_pretrain.pth.tar": FILE,
        "dino.pth": FILE,
        "theirs.pt": FILE,
        "last.pth.tar": FILE,
        "convnext_atto.pth": FILE,
    },
}
"""By page: the settings of a run, or what else it is."""
