"""Sizes and frequencies as people write them on a page: '24 GB', '1.92 TB', '2.6 GHz'."""


def memory_size(size: int) -> str:
    """Word a number of bytes of memory: powers of 2, called GB as vendors of memory do."""
    gib = size / 2**30
    return f"{gib:.0f} GB" if gib >= 10 else f"{gib:.1f}".removesuffix(".0") + " GB"


def disk_size(size: int) -> str:
    """Word a number of bytes of disk: powers of 10 as vendors do; GiB where they come out whole, as of virtual ones."""
    if size and size % 2**30 == 0:
        return f"{size // 2**30} GiB"
    return f"{size / 1e12:.2f}".rstrip("0").rstrip(".") + " TB" if size >= 1e12 else f"{size / 1e9:.0f} GB"


def frequency(mhz: float | None) -> str:
    """Word a frequency given in MHz; empty where it is not known."""
    if mhz is None:
        return ""
    return f"{mhz / 1000:.2f}".rstrip("0").rstrip(".") + " GHz" if mhz >= 1000 else f"{mhz:.0f} MHz"
