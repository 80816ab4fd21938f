"""Gives the network cards of this machine, without their addresses."""


def preprocess(i):
    from msgspec import to_builtins

    from cm4vllm.common.progress import say
    from cm4vllm.hardware.machine import network_env
    from cm4vllm.hardware.network import detect_network
    from cm4vllm.hardware.summary import network_lines

    cards = detect_network()
    for line in network_lines(cards):
        say(f"network: {line}")
    i["env"].update(network_env(cards))
    i["state"]["host_network_raw_info"] = to_builtins(cards)
    return {"return": 0}
