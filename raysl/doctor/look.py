"""`raysl doctor` of a cluster: what it looks at, and what it makes of that."""

from typing import Any

from raysl.cluster.connection import connect
from raysl.doctor import cluster, findings
from raysl.doctor.node import node_facts
from raysl.doctor.storage import StorageProbe


def look_at_cluster(address: str, storage: str | None) -> dict[str, Any]:
    """Look at the cluster of RAY_ADDRESS.

    Args:
        storage: local path or URI that every node has to read and write, or None.

    Returns:
        `address`, `nodes` (a dict each), `growth` (what an autoscaler may add up to; None without one), `all_reduce`
        and `images` (None where they were not measured), `storage` (the facts of a `StorageProbe`), `notes` (what was
        left out, and why) and `problems`, a line each.
    """
    connect()
    nodes, driver_facts = cluster.live_nodes(), node_facts()
    answers = cluster.ask_facts(nodes, cluster.patience([driver_facts]))
    described = [findings.describe(node, answers[node.id]) for node in nodes]
    problems = [line for each in described for line in findings.of_node(each, driver_facts)]
    awake = [node for node in nodes if answers[node.id].error is None]
    workers = [node for node in awake if node.is_worker]
    patience = cluster.patience([each for each in described if each["error"] is None])
    busy = findings.busy_nodes(described)
    facts: dict[str, Any] = {"address": address, "nodes": described, "growth": None}
    facts |= {"all_reduce": None, "images": None, "notes": []}
    if used := cluster.used_cpus([node for node in nodes if node.is_worker]):
        used = findings.at_work(used)
        facts["notes"].append(used)
    if any(node.is_head for node in awake):
        facts["growth"] = cluster.ask_growth(nodes)
        problems += findings.of_growth(facts["growth"])
    if storage is not None:
        with StorageProbe(storage) as probe:
            if not probe.facts["problems"]:
                reports = cluster.ask_storage(awake, probe.uri, patience)
                probe.add({node.id: node.name for node in awake}, reports)
        facts["storage"] = probe.facts
        problems += probe.facts["problems"]
    else:
        facts["notes"].append("no storage was looked at; name it, such as storage=s3://bucket/runs")
    if len(awake) < len(nodes):
        facts["notes"].append("sums and images were not measured, since a node does not answer")
        return facts | {"problems": problems}
    if len(workers) >= 2:
        sums = cluster.ask_sums(workers, patience)
        facts["all_reduce"] = sums.value
        problems += findings.of_sums(sums, busy)
    else:
        facts["notes"].append("sums over nodes were not measured: fewer than two nodes with CPUs or GPUs are up")
    if cpus := cluster.free_cpus(workers):
        images = cluster.ask_images(cpus, patience, used)
        facts["images"] = images.value
        problems += findings.of_images(images, used or busy)
    else:
        facts["notes"].append("images were not decoded: no CPU is up and free")
    return facts | {"problems": problems}
