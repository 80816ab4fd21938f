"""Compares the clock with the time server, in place of the program that would set it."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.power.clocks import ClockInputs, require_clock

    server = ClockInputs.of(i["env"]).ntp_server
    i["env"]["CM_NTP_OFFSET_S"] = f"{require_clock(server):.6f}" if server else ""
    return {"return": 0}
