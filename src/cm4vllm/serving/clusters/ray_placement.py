"""Run by an environment that has Ray: what a cluster has, and where it would put the workers of a server.

    python ray_placement.py ADDRESS WORKERS TIMEOUT_S

prints one line of JSON: {"nodes": [{"address", "alive", "resources"}], "placed": [address of each worker] or null}.
The placement asked for is vLLM's own: a group of WORKERS bundles with one GPU each, packed; it is given back at once.
Imports nothing of the package.
"""

import json
import sys

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group


def main(address: str, workers: int, timeout_s: float) -> None:
    """Ask the cluster at `address` and print what it said."""
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    nodes = {node["NodeID"]: node for node in ray.nodes()}
    placed = None
    if workers:
        group = placement_group([{"GPU": 1}] * workers, strategy="PACK")
        if group.wait(timeout_s):
            where = placement_group_table(group)["bundles_to_node_id"]
            placed = [nodes[where[bundle]]["NodeManagerAddress"] for bundle in sorted(where)]
        remove_placement_group(group)
    nodes_json = [
        {"address": node["NodeManagerAddress"], "alive": node["Alive"], "resources": node["Resources"]}
        for node in nodes.values()
    ]
    print(json.dumps({"nodes": nodes_json, "placed": placed}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
