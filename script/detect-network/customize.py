"""The network cards of this machine, without their addresses."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.hardware.machine_facts import give_facts, network_env, network_lines
    from cm4vllm.hardware.network import detect_network

    cards = detect_network()
    return give_facts(i, "network", network_lines(cards), network_env(cards), host_network_raw_info=cards)
