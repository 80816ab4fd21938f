"""GPUs of a machine, alike, as detection describes them."""

from cm4vllm.records.machine import GpuFacts, MigFacts


def gpus(count, vendor="NVIDIA", mig=0, partitions=0, **given):
    """Return `count` GPUs with the UUIDs GPU-0, GPU-1, ..., or uuid-0 of AMD, each with so many parts."""
    prefix = "GPU" if vendor == "NVIDIA" else "uuid"

    def parts(many, name):
        return [MigFacts(uuid=f"{name}{place}", profile="3g.40gb", memory_bytes=24 * 2**30) for place in range(many)]

    return [
        GpuFacts(
            **{
                "name": f"{vendor} GPU",
                "uuid": f"{prefix}-{place}",
                "memory_bytes": 80 * 2**30,
                "max_sm_mhz": None,
                "pcie_generation": None,
                "pcie_width": None,
                "driver": "1",
                "vendor": vendor,
                "mig": bool(mig),
                "mig_devices": parts(mig, "MIG-"),
                "partitions": parts(partitions, f"{prefix}-{place}/"),
                **given,
            }
        )
        for place in range(count)
    ]
