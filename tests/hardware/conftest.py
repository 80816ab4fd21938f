"""A machine made of files."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from machines import put


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A physical server: two sockets of 4 cores with 2 threads, 64 GiB, an NVMe disk and a hard disk."""
    put(
        tmp_path,
        {
            "etc/os-release": 'NAME="Ubuntu"\nVERSION="24.04.1 LTS (Noble Numbat)"\nID=ubuntu\nID_LIKE=debian\n'
            'VERSION_ID="24.04"\n# a comment = no field\n',
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  Platinum 8480+\n"
            "flags\t\t: fpu avx512f amx_bf16\n",
            "proc/meminfo": "MemTotal:       65000000 kB\n",
            "sys/devices/system/memory/block_size_bytes": "80000000",
            "sys/block/nvme0n1/size": "3750748848",
            "sys/block/nvme0n1/queue/rotational": "0",
            "sys/block/sda/size": "1953525168",
            "sys/block/sda/queue/rotational": "1",
            "sys/block/sda/removable": "0",
            "sys/block/sdb/size": "60437492",
            "sys/block/sdb/removable": "1",
            "sys/block/loop0/size": "8192",
            "sys/block/zram0/size": "8192",
        },
    )
    for block in range(32):
        put(tmp_path, {f"sys/devices/system/memory/memory{block}/state": "online"})
    for cpu in range(16):
        socket, core = cpu % 8 // 4, cpu % 8
        at = f"sys/devices/system/cpu/cpu{cpu}"
        put(
            tmp_path,
            {
                f"{at}/topology/physical_package_id": str(socket),
                f"{at}/topology/thread_siblings_list": f"{core},{core + 8}",
                f"{at}/cpufreq/cpuinfo_max_freq": "3800000",
                f"{at}/cache/index0/level": "1",
                f"{at}/cache/index0/type": "Data",
                f"{at}/cache/index0/size": "48K",
                f"{at}/cache/index0/shared_cpu_list": f"{core},{core + 8}",
                f"{at}/cache/index3/level": "3",
                f"{at}/cache/index3/type": "Unified",
                f"{at}/cache/index3/size": "107520K",
                f"{at}/cache/index3/shared_cpu_list": f"socket {socket}",
            },
        )
    for node in range(2):
        put(tmp_path, {f"sys/devices/system/node/node{node}/online": "1"})
    return tmp_path
