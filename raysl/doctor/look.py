"""`raysl doctor` of a cluster and a storage: what it looks at, and what it makes of that."""

import threading
from typing import Any

from raysl.doctor import findings
from raysl.doctor.measures import StorageProbe, storage_speed
from raysl.errors import ConfigError

DRIVER = "driver"
STORAGE_S = 60.0


def look_at_storage(uri: str) -> dict[str, Any]:
    """Write to a storage from this machine and read it, without Ray.

    Returns:
        `uri`, `driver` (MB/s of `read` and `write`; None where it failed) and `problems`.
    """
    with _Probed(uri) as probed:
        pass
    return probed.facts


def look_at_cluster(address: str, storage: str | None) -> dict[str, Any]:
    """Look at the cluster of RAY_ADDRESS.

    Args:
        storage: local path or URI that every node has to read and write, or None.

    Returns:
        `address`, `nodes` (a dict each), `growth` (what an autoscaler may add up to; None without one), `all_reduce`
        and `images` (None where they were not measured), `storage` as `look_at_storage` returns it, with `nodes`,
        `notes` (what was left out, and why) and `problems`, a line each.
    """
    from raysl.cluster.connection import connect
    from raysl.doctor import cluster
    from raysl.doctor.node import node_facts

    connect()
    nodes, driver_facts = cluster.live_nodes(), node_facts()
    answers = cluster.ask_facts(nodes)
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
        with _Probed(storage) as probed:
            if not probed.facts["problems"]:
                reports = cluster.ask_storage(awake, probed.uri, probed.note, patience)
                probed.add({node.id: node.name for node in awake}, reports)
            facts["storage"] = probed.facts
        problems += probed.facts["problems"]
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


class _Probed:
    """A storage with the driver's probe in it while inside; `facts` are what was seen."""

    def __init__(self, uri: str) -> None:
        self.given = uri
        self.facts: dict[str, Any] = {"uri": uri, "driver": None, "nodes": {}, "problems": []}
        self.probe: StorageProbe | None = None
        self.uri = self.note = ""
        self.is_stuck = False

    def __enter__(self) -> "_Probed":
        """Write the probe, in a thread, so that a storage that does not answer is not waited for."""
        failures: list[str] = []
        thread = threading.Thread(target=self._write, args=(failures,), daemon=True)
        thread.start()
        thread.join(STORAGE_S)
        self.is_stuck = thread.is_alive()
        if self.is_stuck:
            failures = [f"no answer within {STORAGE_S:.0f} s"]
        self.facts["problems"] = [findings.of_driver_storage(self.given, failure) for failure in failures]
        return self

    def _write(self, failures: list[str]) -> None:
        try:
            probe = self.probe = StorageProbe(self.given)
            probe.write()
            self.uri, self.note = probe.uri, probe.name
            self.facts["driver"] = storage_speed(probe.uri, probe.name, DRIVER)
        except ConfigError as error:
            failures.append(str(error))

    def add(self, names: dict[str, str], answers: dict[str, Any]) -> None:
        """Add what nodes, by id, answered, and whether what they wrote arrives here."""
        assert self.probe is not None
        for node, answer in answers.items():
            arrives = bool(answer.value and answer.value["sees"]) and self.probe.sees(node)
            self.facts["nodes"][node] = (answer.value or {"sees": False, "error": answer.error}) | {"arrives": arrives}
        self.facts["problems"] += findings.of_storage(self.given, names, self.facts["nodes"])

    def __exit__(self, *_: object) -> None:
        """Delete the probe, unless its storage does not answer."""
        if self.probe is None or self.is_stuck:
            return
        try:
            self.probe.remove()
        except ConfigError as error:
            if not self.facts["problems"]:  # else it is the same once more
                self.facts["problems"].append(findings.of_driver_storage(self.given, str(error)))
        if self.probe.made:
            self.facts["problems"].append(findings.of_missing_storage(self.given))
