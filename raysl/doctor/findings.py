"""What stands in the way of a run on a cluster, a line each with what helps, and the lines that describe it."""

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from raysl.doctor.measures import GRADIENT_BYTES
from raysl.process.screen import counted, named, plural
from raysl.redact import redact_uri

if TYPE_CHECKING:
    from raysl.doctor.cluster import Answer, Node

MOST_OFFSET_S = 2.0
LEAST_FREE_GIB, LEAST_STORE_GIB = 2.0, 0.5
LEAST_GB_PER_S = 0.1
MOST_LOAD = 2.0
"""Processes a core above which a finding names the load."""


def describe(node: "Node", answer: "Answer") -> dict[str, Any]:
    """Return a node, and what it says of itself, as JSON types; `clock_s` is how far its clock is ahead of ours."""
    facts: dict[str, Any] = answer.value or {}
    missing = {"clock_s": None, "clock_bound_s": None, "error": answer.error}
    return {"name": node.name, **asdict(node), **missing, **facts}


def of_node(node: dict[str, Any], driver: dict[str, Any]) -> list[str]:
    """Return what is wrong with a node that `describe` describes, beside the facts of this process."""
    name = f"node {node['name']}"
    if node["error"] is not None:
        return [f"{name}: {node['error']}; look at its load and `ray logs`, and start Ray on it again"]
    lines = [f"{name} {text}" for text in _versions(node, driver)]
    if node["driver"] is not None and node["devices"] and not node["gpus"]:
        lines.append(f"{name} has {counted(node['devices'], 'GPU')} and offers none to Ray; start it with --num-gpus")
    torch = node["packages"]["torch"]
    if node["gpus"] and torch is not None and torch.endswith("+cpu"):
        gpus = f"{node['gpus']:g} {plural('GPU', node['gpus'])}"
        lines.append(f"{name} has {gpus} and torch {torch}, which uses none; install one for CUDA")
    if (memory := node["memory"]) and memory["free"] < LEAST_FREE_GIB:
        lines.append(f"{name} has {memory['free']:.1f} GiB of memory left; end other processes, or take a larger one")
    if node["object_store"] < LEAST_STORE_GIB and (node["cpus"] or node["gpus"]):
        lines.append(
            f"{name} has an object store of {node['object_store']:.2f} GiB, so batches wait on disk; start it with "
            "--object-store-memory=2000000000 or more"
        )
    if memory and (shm := node["shm"]) and shm["total"] < 0.2 * memory["total"]:
        lines.append(
            f"{name} has {shm['total']:.1f} GiB of /dev/shm beside {memory['total']:.1f} GiB of memory, so its object "
            "store is on a disk; start its container with --shm-size"
        )
    # only what is left after the error of the measurement is certain
    if abs(node["clock_s"]) - node["clock_bound_s"] > MOST_OFFSET_S:
        lines.append(
            f"{name} has a clock {abs(node['clock_s']):.1f} s {'ahead of' if node['clock_s'] > 0 else 'behind'} this "
            "machine's; run chrony or ntpd on both, since storages refuse requests of wrong times"
        )
    return lines


def _versions(node: dict[str, Any], driver: dict[str, Any]) -> list[str]:
    lines = []
    if node["python"].split(".")[:2] != driver["python"].split(".")[:2]:
        lines.append(f"runs Python {node['python']}, this machine {driver['python']}; install the same on both")
    for package, number in node["packages"].items():
        wanted = driver["packages"][package]
        if number != wanted:
            version = f"no {package}" if number is None else f"{package} {number}, this machine {wanted}"
            lines.append(f"has {version}; install {package} {wanted} on it{_working_dir(package)}")
    raysl = node["packages"]["raysl"]
    if raysl is not None and raysl == driver["packages"]["raysl"] and node["code"] != driver["code"]:
        lines.append(f"has other code of raysl {raysl} than this machine; install the same{_working_dir('raysl')}")
    return lines


def _working_dir(package: str) -> str:
    return ", or submit a job with --working-dir" if package == "raysl" else ""


def of_storage(uri: str, names: dict[str, str], nodes: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong with a storage, by what nodes said of it."""
    shown = redact_uri(uri)
    errors: dict[str, list[str]] = {}
    for node, facts in nodes.items():
        if error := facts.get("error"):
            errors.setdefault(error, []).append(names[node])
    lines = [f"storage {shown} from the {named('node', failing)}: {error}" for error, failing in errors.items()]
    # blind: does not see the files of this machine; lost: sees them, but its own do not arrive here
    blind = [names[node] for node, facts in nodes.items() if not facts["sees"] and "error" not in facts]
    lost = [names[node] for node, facts in nodes.items() if facts["sees"] and not facts["arrives"]]
    if blind:
        lines.append(
            f"storage {shown} is another folder on the {named('node', blind)} than on this machine; give storage= "
            "a folder that all nodes share, or a URI such as s3://bucket/runs"
        )
    if lost:
        lines.append(f"storage {shown}: files from the {named('node', lost)} are not seen here; share the folder")
    return lines


def of_growth(growth: dict[str, Any] | None) -> list[str]:
    """Return what is wrong with the autoscaler."""
    if growth is None or not growth["problem"]:
        return []
    return [
        f"the autoscaler could not add a node: {growth['problem']}; look at the rights and quotas of the head's role "
        "and at `ray status`"
    ]


def busy_nodes(nodes: list[dict[str, Any]]) -> str:
    """Return the nodes with a load above `MOST_LOAD` a core, as they stand in a finding; empty without one."""
    busy = [
        f"node {node['name']} has a load of {node['load']:.0f} on {node['cores']} cores"
        for node in nodes
        if node["error"] is None and node["load"] > MOST_LOAD * node["cores"]
    ]
    return f"{', '.join(busy)}; end what else runs there, or try again later" if busy else ""


def of_sums(answer: "Answer", busy: str = "") -> list[str]:
    """Return what is wrong with sums over nodes."""
    if answer.is_late and busy:
        return [f"nodes cannot sum tensors together: {answer.error}; {busy}"]
    if answer.error is not None:
        return [
            f"nodes cannot sum tensors together: {answer.error}; open all TCP ports between them, and where they have "
            "several networks set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the shared one"
        ]
    if answer.value["gb_per_s"] >= LEAST_GB_PER_S:
        return []
    return [
        f"the network between nodes sends {answer.value['gb_per_s']:.2f} GB/s; take nodes with a faster one, in one "
        "zone, or set train.compress_gradients"
    ]


def at_work(used: str) -> str:
    """Return a description of CPUs in use, with the next step."""
    jobs = re.findall(r"of the Ray job (\w+)", used)
    ways = [f"`ray job stop {job}`" for job in dict.fromkeys(jobs)] or ["Ctrl-C where it was started"]
    return f"{used}: wait for it, or stop it by {' and '.join(ways)}; what is measured beside it is too slow"


def of_images(answer: "Answer", busy: str = "") -> list[str]:
    """Return what is wrong with the way of images."""
    if answer.error is None:
        return []
    advice = busy or "end what holds the CPUs, or look at `ray status`"
    return [f"no images come through Ray Data: {answer.error}; {advice}"]


def verdict(problems: list[str]) -> str:
    """Return the last line: whether anything stands in the way of a run.

    >>> verdict([])
    'no problem found: nothing stands in the way of a run'
    >>> verdict(["node 10.0.0.2 has no raysl"])
    '1 problem found, and nothing else stands in the way of a run'
    """
    if problems:
        return f"{counted(len(problems), 'problem')} found, and nothing else stands in the way of a run"
    return "no problem found: nothing stands in the way of a run"


def cluster_text(facts: dict[str, Any]) -> str:
    """Return what `look_at_cluster` saw, without its problems, as lines."""
    nodes = facts["nodes"]
    cpus, gpus = (sum(node[name] for node in nodes) for name in ("cpus", "gpus"))
    rows = [("cluster", f"{facts['address']}: {counted(len(nodes), 'node')}, {cpus:g} CPUs, {gpus:g} GPUs")]
    if growth := facts["growth"]:
        limits = f"{growth['cpus']:g} CPUs, {growth['gpus']:g} GPUs"
        rows.append(("may grow", f"to {limits}, by {growth['origin']}"))
    rows += [("node", _node_text(node)) for node in nodes]
    if sums := facts["all_reduce"]:
        rows.append(("sums", _sums_text(sums)))
    if images := facts["images"]:
        rows.append(("images", f"{images['images_per_s']:,.0f}/s decoded and cropped by {images['cpus']:g} CPUs"))
    if text := storage_text(facts.get("storage")):
        rows.append(("storage", text))
    rows += [("note", note) for note in facts["notes"]]
    return "\n".join(f"{name:<12}{text}" for name, text in rows)


def storage_text(facts: dict[str, Any] | None) -> str:
    """Return what was seen of a storage in a line; empty for one that is not usable, which is a problem."""
    if facts is None or facts["driver"] is None:
        return ""
    parts = [f"this machine {_rates(facts['driver'])}"]
    rates = [node for node in facts["nodes"].values() if node.get("arrives")]
    if rates:
        slowest = {name: min(node[name] for node in rates) for name in ("read", "write")}
        parts.append(f"{len(rates)} of {counted(len(facts['nodes']), 'node')} at a time {_rates(slowest)} or more each")
    return f"{redact_uri(facts['uri'])}: {'; '.join(parts)}"


def _rates(facts: dict[str, Any]) -> str:
    return f"reads {facts['read']:,.0f} and writes {facts['write']:,.0f} MB/s"


def _sums_text(sums: dict[str, Any]) -> str:
    # in a sum by a ring of n nodes, each sends 2 (n - 1) / n of the bytes
    gradients = 2 * (sums["nodes"] - 1) / sums["nodes"] * GRADIENT_BYTES / 1e9 / sums["gb_per_s"]
    return (
        f"over {sums['nodes']} nodes by {sums['backend']}: one number in {sums['latency_ms']:.2f} ms, 64 MiB in "
        f"{sums['seconds']:.3f} s, {sums['gb_per_s']:.2f} GB/s; the gradients of a ResNet-50 would take "
        f"{gradients:.2f} s a step"
    )


def _node_text(node: dict[str, Any]) -> str:
    offers = (
        f"{node['name']}: {node['cpus']:g} CPUs, {node['gpus']:g} GPUs, object store {node['object_store']:.1f} GiB"
    )
    if node["error"] is not None:
        return offers
    memory = node["memory"] and f"{node['memory']['free']:.1f} of {node['memory']['total']:.1f} GiB of memory free"
    shm = node["shm"] and f"/dev/shm {node['shm']['total']:.1f} GiB"
    versions = [f"Python {node['python']}", *(f"{name} {number}" for name, number in node["packages"].items())]
    versions += [f"Ray without {', '.join(node['lacking'])}"] if node["lacking"] else []
    load = f"load {node['load']:.1f} on {node['cores']} cores"
    clock = f"clock {node['clock_s']:+.3f} s ± {node['clock_bound_s']:.3f}"
    return ", ".join(part for part in (offers, load, memory, shm, clock, node["driver"], *versions) if part)
