"""The network cards of this machine, without their addresses."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from msgspec import to_builtins

    from cm4vllm.common.progress import say_facts
    from cm4vllm.hardware.host import detect_network
    from cm4vllm.hardware.machine_facts import network_env, network_lines

    cards = detect_network()
    say_facts("network", *network_lines(cards))
    i["env"].update(network_env(cards))
    i["state"]["host_network_raw_info"] = to_builtins(cards)
    return {"return": 0}
