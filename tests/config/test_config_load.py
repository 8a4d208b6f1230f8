from collections.abc import Callable
from pathlib import Path

import pytest

import raysl
from raysl.config import config_files
from raysl.config.build import from_dict
from raysl.config.dump import differences, dump, to_dict
from raysl.config.load import apply_overrides, load_config, load_dumped
from raysl.errors import ConfigError
from raysl.schedule import Duration

Write = Callable[[str, str], str]
PARTS = Path(__file__).with_name("parts.py")
DURATIONS = "write epochs (10ep), steps (500st) or a share of the run (5%)"

BENCHMARK = {"required": True, "rivals": ["untrained", "pixels"], "data": None, "interpolation": "bicubic"}
"""What every benchmark's node has."""


def error_of(path: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, list(overrides))
    return str(caught.value)


def test_name_defaults_to_the_stem_of_the_file(tiny: str) -> None:
    assert load_config(tiny).name == "tiny"
    assert load_config(tiny, ["name=other"]).name == "other"


def test_overrides_are_typed_by_their_fields(tiny: str) -> None:
    config = load_config(
        tiny,
        ["optim.lr=1e-3", "optim.weight_decay=0", "optim.warmup=5%", "train.clip_grad=null", "method.range=[0.1, 1]",
         "method.head.widths=[7]", "train.expect={top1: [0.5, 1]}", "data.path=a=b", "train.max_failures=-1"],
    )  # fmt: skip
    assert config.optim.lr == 0.001
    assert config.optim.weight_decay == 0.0
    assert isinstance(config.optim.weight_decay, float)
    assert config.optim.warmup == Duration(5, "%")
    assert config.train.clip_grad is None
    assert to_dict(config)["method"]["range"] == [0.1, 1.0]
    assert to_dict(config)["data"]["path"] == "a=b"
    assert config.train.expect == {"top1": (0.5, 1.0)}
    assert config.train.max_failures == -1


def test_partly_given_group_takes_the_rest_from_the_default_of_its_field(tiny: str) -> None:
    head = to_dict(load_config(tiny, ["method.head.bias=false"]))["method"]["head"]
    assert head == {"widths": [128, 128], "bias": False, "tip": {"size": 5, "scale": 1.0}}
    head = to_dict(load_config(tiny, ["method.head.tip.scale=2"]))["method"]["head"]
    assert head["tip"] == {"size": 5, "scale": 2.0}
    assert to_dict(load_config(tiny, ["method.local.bias=false"]))["method"]["local"] == {
        "widths": [64, 32],
        "bias": False,
        "tip": {"size": 4, "scale": 1.0},
    }
    assert to_dict(load_config(tiny, ["method.local={bias: false}", "method.local=null"]))["method"]["local"] is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lr=fast", "optim.lr: 'fast' is not of type float; write a number"),
        ("optim.lr=true", "optim.lr: true is not of type float; write a number"),
        ("train.epochs=abc", "train.epochs: 'abc' is not of type int; write a whole number"),
        ("train.epochs=1e2", "train.epochs: 100.0 is not of type int; write 100"),
        ("train.epochs=1.5", "train.epochs: 1.5 is not of type int; write a whole number"),
        ("train.epochs=true", "train.epochs: true is not of type int; write a whole number"),
        ("train.sync_bn=1", "train.sync_bn: 1 is not of type bool; write true or false"),
        ("train.clip_grad=x", "train.clip_grad: 'x' is not of type float or null; write a number or null"),
        ("train.compile=steps", "train.compile: 'steps' is not of type bool or 'step'; write true, false or step"),
        ("train.device=gpu", "train.device: 'gpu' is not one of its choices; write one of auto, cpu, cuda"),
        ("method.level=true", "method.level: true is not one of its choices; write one of 0, 1"),
        ("optim.warmup=10", f"optim.warmup: 10 is not of type duration; {DURATIONS}"),
        ("optim.warmup=10 epochs", f"optim.warmup: '10 epochs' is no duration; {DURATIONS}"),
        ("data.std=[1, 1]", "data.std: 2 values for data.channels=rgb, which needs 3"),
        ("data.std=[1, 1, x]", "data.std[2]: 'x' is not of type float; write a number"),
        ("data.std=1", "data.std: 1 values for data.channels=rgb, which needs 3"),
        ("method.head=3", "method.head: 3 is not a group of settings; set its fields, or write {} for defaults"),
        ("method.local={bias: 3}", "method.local.bias: 3 is not of type bool; write true or false"),
        ("method.head.widths=[1, two]", "method.head.widths[1]: 'two' is not of type int; write a whole number"),
        ("train.expect={a: {b: 1}}", "train.expect.a: {b: 1} is not of type list of 2; write [a, b, ...]"),
        ("benchmarks=a,b", "benchmarks: 'a,b' is not a list; write [a, b]"),
        ("method=3", "method.name: 3 is not a text; choose one of contrast, teacher"),
        ("train=3", "train=3: train is a group of settings; set one of them, such as train.epochs=10"),
        ("train.epochs=[", "train.epochs=[: not YAML: "),
        ("stray", "'stray' is not a setting; write key=value, such as optim.lr=0.1"),
    ],
)
def test_what_does_not_fit_is_told_with_key_value_and_rule(tiny: str, override: str, message: str) -> None:
    assert error_of(tiny, override).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lr=0.1", "lr: no such setting; did you mean optim.lr?"),
        ("optimizer.lr=0.1", "optimizer.lr: no such setting; did you mean optim.lr?"),
        ("train.bach_size=8", "train.bach_size: no such setting; did you mean train.batch_size?"),
        ("method.hed.bias=true", "method.hed.bias: no such setting; did you mean method.head.bias"),
        ("backbone.zzz=1", "backbone.zzz: no such setting; backbone has name, freeze, in_channels, adapters, width"),
        ("methd.temperature=1", "methd.temperature: no such setting; did you mean method.temperature?"),
        ("my.zzz=1", "my.zzz: no such setting; 'my' is no group of settings; a run has method, backbone, data, optim"),
        ("dat.zzz=1", "dat.zzz: no such setting; 'dat' is no group of settings; did you mean 'data'? a run has"),
        ("zzz=1", "zzz: no such setting; a run has name, storage, seed, method"),
        ("method=contrst", "method.name: unknown method 'contrst'; did you mean 'contrast'?"),
        (
            "benchmarks.neigbours.k=3",
            "benchmarks.neigbours.name: unknown benchmark 'neigbours'; did you mean 'neighbours'?",
        ),
    ],
)
def test_unknown_names_come_with_what_was_meant(tiny: str, override: str, message: str) -> None:
    assert error_of(tiny, override).startswith(message)


@pytest.mark.parametrize("text", ["007", "1e5", "no", "1_000"])
def test_a_text_is_what_was_typed(tiny: str, text: str) -> None:
    assert load_config(tiny, [f"name={text}"]).name == text
    assert apply_overrides(load_config(tiny), [f"name={text}"]).name == text
    assert load_config(tiny, [f"name={text}", "name=last"]).name == "last"


@pytest.mark.parametrize("text", ["trial #2", "#2", "7 #a", 'it\'s "ä" #b'])
def test_a_hash_in_a_text_that_is_typed_begins_no_comment(tiny: str, text: str) -> None:
    assert load_config(tiny, [f"name={text}"]).name == text
    assert apply_overrides(load_config(tiny), [f"name={text}"]).name == text
    assert load_config(tiny, [f"storage={text}"]).storage == text
    assert to_dict(load_config(tiny, [f"data.path={text}"]))["data"]["path"] == text


def test_a_comment_behind_what_is_no_text_is_refused(tiny: str) -> None:
    rule = "' #' begins a comment in YAML; leave it out, or put the text in quotes: "
    assert error_of(tiny, "name='a' #b") == f"name='a' #b: {rule}name='...'"
    assert error_of(tiny, "method.range=[0.1, 1] # b") == f"method.range=[0.1, 1] # b: {rule}method.range='...'"
    assert error_of(tiny, "optim.lr=0.1 # b") == "optim.lr: '0.1 # b' is not of type float; write a number"
    assert load_config(tiny, ["name='a #b'", "method.range=[0.1, 1]"]).name == "a #b"


def test_a_number_in_a_file_where_a_text_belongs_is_to_be_quoted(tiny: str, write: Write) -> None:
    message = "name: 7 is not of type text; put what you wrote in quotes"
    assert error_of(write("seven.yaml", f"{Path(tiny).read_text()}name: 007\n")) == message


def test_all_that_is_wrong_is_told_at_once(tiny: str) -> None:
    lines = error_of(tiny, "lr=1", "train.epochs=x", "method.head.bias=3", "optim.lr=y").splitlines()
    assert [line.split(":")[0] for line in lines] == ["lr", "method.head.bias", "optim.lr", "train.epochs"]


def test_values_out_of_range_are_told_with_their_bounds(tiny: str) -> None:
    text = error_of(
        tiny, "train.epochs=0", "train.workers=-1", "data.buffer_gb=0", "optim.final_lr=1.1", "optim.lr=.nan",
        "data.std=[0, 1, 1]", "train.log_every=0st", "train.expect={a: [2, 1]}",
    )  # fmt: skip
    keys = {line.split(":")[0] for line in text.splitlines()}
    assert keys == {
        "train.epochs", "train.workers", "data.buffer_gb", "optim.final_lr", "optim.lr", "data.std[0]",
        "train.log_every", "train.expect.a",
    }  # fmt: skip
    assert "train.epochs: 0 is out of range; give a finite number of at least 1" in text


def test_values_that_do_not_go_together_are_told(tiny: str) -> None:
    text = error_of(tiny, "name=a/b", "data.eval_resize=16", "optim.warmup=101%", "data.lanes=300")
    keys = [line.split(":")[0] for line in text.splitlines()]
    assert keys == ["name", "data.eval_resize", "data.lanes", "optim.warmup"]


def test_missing_values_and_components_are_told(write: Write) -> None:
    path = write("empty.yaml", "backbone: net\nmethod:\n")
    assert error_of(path).splitlines() == [
        "method: missing; choose one with method=NAME (contrast, teacher)",
        "backbone.width: missing; it has no default, set it with backbone.width=... (int)",
        "data: missing; choose one with data=NAME (pictures)",
        "optim: missing; choose one with optim=NAME (adam)",
    ]


def test_a_class_without_settings_is_no_component(tiny: str) -> None:
    assert "Bare has no settings; nest a frozen dataclass Config(MethodConfig)" in error_of(
        tiny, f"method={PARTS}:Bare"
    )
    assert "Net has no settings" in error_of(tiny, f"method={PARTS}:Net")


def test_what_a_component_refuses_names_its_node(tiny: str) -> None:
    assert error_of(tiny, "method=teacher", "method.momentum=2") == "method: momentum 2.0 is not in [0, 1]"


def test_file_lies_over_its_bases_in_their_order(tiny: str, write: Write) -> None:
    write("sub/a.yaml", "name: a\nseed: 1\ntrain: {epochs: 5, workers: 2}\n")
    write("b.yaml", "base: sub/a.yaml\ntrain: {epochs: 6}\n")
    path = write("top.yaml", "base: [tiny, b, sub/a.yaml]\ntrain:\noptim: {lr: 2}\n")
    config = load_config(path)
    assert (config.name, config.seed, config.train.epochs, config.train.workers, config.optim.lr) == (
        "top",
        1,
        6,
        2,
        2.0,
    )


def test_bases_in_a_circle_are_refused(write: Write) -> None:
    write("b.yaml", "base: a.yaml\n")
    path = write("a.yaml", "base: b.yaml\n")
    assert "a.yaml -> " in error_of(path)
    assert "is a circle" in error_of(path)


def test_packaged_names_are_found_and_near_ones_suggested(
    tiny: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tiny).parent / "packaged"
    write("packaged/data/cifar10.yaml", "# CIFAR.\ndata: {image_size: 32}\n")
    write("packaged/imagenet/simclr.yaml", Path(tiny).read_text())
    monkeypatch.setattr(config_files, "packaged_folder", lambda: folder)
    assert config_files.config_names() == ["data/cifar10", "imagenet/simclr"]
    assert config_files.read_summary(folder / "data/cifar10.yaml") == "CIFAR."
    assert load_config("simclr", ["base=data/cifar10"]).data.image_size == 32
    assert load_config("simclr", ["base=data/cifar10", "data.image_size=64"]).data.image_size == 64
    assert load_config("simclr", ["base=data/cifar10"]).name == "simclr"
    assert "did you mean 'simclr'? `raysl list configs` shows all" in error_of("simclrr")
    assert error_of("xyz").startswith("no configuration 'xyz'; `raysl list configs` shows all")
    assert "did you mean 'simclr'?" in error_of("Sim-CLR")
    assert "did you mean 'data/cifar10'?" in error_of("cifar-10")
    assert "a packaged one has the name 'simclr'" in error_of("simclr.yaml")
    own = write("simclr.yaml", "base: simclr\nseed: 9\n")
    assert load_config(own).seed == 9


def test_a_base_is_a_packaged_configuration_before_a_file_beside_it_unless_it_says_so(
    tiny: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(tiny).read_text()
    for name, seed in (("packaged/a", 1), ("packaged/sub/a", 2), ("a", 3), ("b", 4)):
        write(f"{name}.yaml", f"{text}seed: {seed}\n")
    monkeypatch.setattr(config_files, "packaged_folder", lambda: Path(tiny).parent / "packaged")
    assert load_config(write("packaged/sub/top.yaml", "base: a\n")).seed == 1
    assert load_config(write("packaged/sub/near.yaml", "base: ./a\n")).seed == 2
    assert load_config(write("packaged/sub/far.yaml", "base: sub/a\n")).seed == 2
    for base, seed in (("a", 1), ("./a", 3), ("../a", 3), ("b", 4)):
        folder = "own/" if base.startswith("../") else ""
        assert load_config(write(f"{folder}mine.yaml", f"base: {base}\n")).seed == seed, base
    assert "mine.yaml: base: no configuration './c'" in error_of(write("mine.yaml", "base: ./c\n"))


def test_configurations_are_taken_from_the_package_before_the_folder_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raysl, "__path__", [str(tmp_path / "raysl")])
    assert config_files.packaged_folder() == tmp_path / "configs"
    (tmp_path / "raysl/configs").mkdir(parents=True)
    assert config_files.packaged_folder() == tmp_path / "raysl/configs"


def test_a_base_that_two_bases_share_lies_below_both(tiny: str, write: Write) -> None:
    write("one.yaml", "base: tiny\nseed: 1\n")
    write("two.yaml", "base: tiny\ntrain: {epochs: 2}\n")
    write("tiny.yaml", Path(tiny).read_text() + "seed: 5\n")
    assert load_config(write("both.yaml", "base: [one, two]\n")).seed == 1


@pytest.mark.thorough
def test_interpolation_sees_overrides_and_defaults(tiny: str, write: Write) -> None:
    path = write("i.yaml", "base: tiny\nbackbone: {width: '${data.image_size}'}\nname: e${train.epochs}-\\${x}\n")
    assert load_config(path).name == "e100-${x}"
    config = load_config(path, ["train.epochs=7", "data.image_size=32"])
    assert (config.name, to_dict(config)["backbone"]["width"]) == ("e7-${x}", 32)
    assert error_of(path, "name=${nothing}").startswith("name: Interpolation key 'nothing' not found")


def test_another_component_starts_from_its_own_defaults(tiny: str, write: Write) -> None:
    path = write("m.yaml", "base: tiny\nmethod: {temperature: 0.5, shape: wide, head: {widths: [5]}, terms: {a: 1}}\n")
    method = to_dict(load_config(path, ["method=teacher"]))["method"]
    assert method == {
        "name": "teacher",
        "transforms": [],
        "weights": None,
        "shape": 3,
        "momentum": 0.99,
        "head": {"widths": [64, 32], "bias": True, "tip": {"size": 4, "scale": 1.0}},
    }
    derived = write("n.yaml", "base: m.yaml\nmethod: teacher\n")
    assert to_dict(load_config(derived))["method"] == method
    assert to_dict(load_config(derived, ["method=contrast"]))["method"]["temperature"] == 0.1
    assert error_of(path, "method=teacher", "method.temperature=0.5").startswith("method.temperature: no such setting")
    unnamed = write("u.yaml", "method: {temperature: 1}\n")
    assert "method.temperature: no such setting" in error_of(unnamed, "method=teacher")
    typed = write("o.yaml", "base: m.yaml\nmethod: {name: teacher, temperature: 1}\n")
    assert error_of(typed).startswith("method.temperature: no such setting")
    wide = write("w.yaml", "base: tiny\nbenchmarks: {wide: {name: neighbours, k: 50}}\n")
    other = load_config(wide, [f"benchmarks.wide={PARTS}:Others"])
    assert to_dict(other)["benchmarks"]["wide"] == BENCHMARK | {
        "name": f"{PARTS.relative_to(Path.cwd())}:Others",
        "k": 7,
    }


def test_benchmarks_have_their_key_as_name_and_can_be_selected(tiny: str, write: Write) -> None:
    path = write("b.yaml", "base: tiny\nbenchmarks: {neighbours: {k: 5}, wide: {name: neighbours, k: 50}}\n")
    assert {key: node.name for key, node in load_config(path).benchmarks.items()} == {
        "neighbours": "neighbours",
        "wide": "neighbours",
    }
    only = load_config(path, ["benchmarks.wide.k=60", "benchmarks=[wide]"])
    assert to_dict(only)["benchmarks"] == {"wide": BENCHMARK | {"name": "neighbours", "k": 60}}
    assert load_config(path, ["benchmarks=[]"]).benchmarks == load_config(path, ["benchmarks={}"]).benchmarks == {}
    assert "write benchmarks=[]" in error_of(path, "benchmarks=null")
    assert error_of(path, "benchmarks.wide=null").startswith("benchmarks.wide: null is not a group of settings")


def test_a_file_of_a_component_is_named_from_the_working_directory_and_by_its_path_outside_of_it(
    tiny: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PARTS.read_text()
    write("yaml/mine.py", text)
    write("cwd/yours.py", text)
    path = write("yaml/run.yaml", "base: ../tiny.yaml\nmethod: {name: 'mine.py:Teacher'}\n")
    monkeypatch.chdir(tmp_path / "cwd")
    assert load_config(path).method.name == f"{tmp_path}/yaml/mine.py:Teacher"
    assert load_config(path, ["method=yours.py:Teacher"]).method.name == "yours.py:Teacher"
    assert load_config(path, [f"method={tmp_path}/cwd/yours.py:Teacher"]).method.name == "yours.py:Teacher"
    told = error_of(path, "method=none.py:Teacher")
    assert f"no file 'none.py'; it is looked for at {tmp_path}/cwd/none.py" in told
    monkeypatch.chdir(tmp_path)
    assert load_config("yaml/run.yaml").method.name == "yaml/mine.py:Teacher"


def test_yaml_mistakes_name_file_and_line(write: Write) -> None:
    assert error_of(write("d.yaml", "seed: 1\nseed: 2\n")).endswith("d.yaml line 2: not YAML: found duplicate key seed")
    assert error_of(write("k.yaml", "1: a\n")).startswith("1: no such setting; a run has name, ")
    assert "s.yaml line 2: not YAML" in error_of(write("s.yaml", "a: 1\n b: [\n"))
    assert error_of(write("l.yaml", "- 1\n")).endswith("has no settings; write lines such as `method: simclr`")
    assert "base: 3 is not a name" in error_of(write("b.yaml", "base: 3\n"))
    assert "no file 'gone.yaml'" in error_of("gone.yaml")


@pytest.mark.thorough
def test_what_is_dumped_loads_as_the_same(tiny: str, write: Write) -> None:
    config = load_config(
        tiny, ["optim.warmup=1234567st", "name='a: \\${b} # \\${c}'", "storage=1e-3x", "optim.lr=1e-5"]
    )
    assert load_config(write("again.yaml", dump(config))) == config
    slashed = from_dict({**to_dict(config), "storage": "a\\\\${b}\\${c}\\"})
    assert load_config(write("again.yaml", dump(slashed))) == slashed
    assert load_dumped(dump(slashed), trust_code=True) == slashed
    assert from_dict(to_dict(config)) == config


def test_differences_leave_out_what_may_change(tiny: str) -> None:
    old = load_config(tiny)
    new = load_config(
        tiny, ["optim.lr=0.6", "train.workers=4", "optim.chatty=true", "benchmarks.neighbours.k=3", "name=x"]
    )
    assert differences(old, new) == ["optim.lr: 0.3 -> 0.6"]
    assert differences(to_dict(old), new) == ["optim.lr: 0.3 -> 0.6"]
    assert differences(old, old) == []
    other = load_config(tiny, ["method=teacher"])
    assert "method.temperature: 0.1 -> unset" in differences(old, other)
    assert "method.momentum: unset -> 0.99" in differences(old, other)
    assert "method.shape: square -> 3" in differences(to_dict(old), other)
