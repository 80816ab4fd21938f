"""Recorded calls of NVML and its answers, as JSON: made on a machine with GPUs, replayed in tests without a GPU.

    {"source": "...", "answers": {"nvmlDeviceGetName(gpu0)": "NVIDIA L40S", ...}}

A key is the call in words; a device handle is gpu0, gpu1, ... and the parts that MIG makes of it gpu0.mig0, ...
An answer is what nvidia-ml-py returned: a number, a text, a list, the fields of a structure as an object,
{"handle": "gpu0"} for a device, or {"error": 3} with NVML's number for an error.
"""

import ctypes
import json
from typing import Any


class Recorder:
    """Stands for the NVML module and keeps all answers."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._answers: dict[str, Any] = {}
        self._handles: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(function):
            return function

        def call(*args: Any) -> Any:
            words = [self._handles[_address(arg)] if _is_handle(arg) else str(arg) for arg in args]
            key = f"{name}({', '.join(words)})"
            try:
                answer = function(*args)
            except self._nvml.NVMLError as error:
                self._answers[key] = {"error": error.value}
                raise
            if _is_handle(answer):
                label = f"{words[0]}.mig{words[1]}" if len(words) == 2 else f"gpu{words[0]}"
                self._handles[_address(answer)] = label
                self._answers[key] = {"handle": label}
            else:
                self._answers[key] = _plain(answer)
            return answer

        return call

    def recording(self, source: str) -> dict[str, Any]:
        """Return all that was asked so far, with counted UUIDs in place of the devices' own."""
        text = json.dumps(self._answers)
        uuids = [answer for key, answer in self._answers.items() if key.startswith("nvmlDeviceGetUUID")]
        for count, uuid in enumerate(dict.fromkeys(uuids)):
            text = text.replace(uuid, f"{uuid.partition('-')[0]}-00000000-0000-0000-0000-{count:012d}")
        return {"source": source, "answers": json.loads(text)}


def _is_handle(value: Any) -> bool:
    return isinstance(value, ctypes._Pointer)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Structure):
        return {field[0]: _plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
