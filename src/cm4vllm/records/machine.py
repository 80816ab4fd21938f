"""Facts about the machine, as typed values in exact units.

None, an empty text and an empty list say that nothing shows a fact; `machine_facts` names those. No record has a
host name, a user name, an address or a serial number. A GPU's UUID says which ones serve; it stays in machine.json.
"""

from cm4vllm.common.records import Record

#: The names of the description of a system, and of what was detected of its machine.
SYSTEM_FILE = "system.json"
MACHINE_FILE = "machine.json"
#: The facts of the second and further nodes of a server, * being the number of the node.
NODE_FILES = "machine-*.json"

#: The fact of a GPU that one without memory of its own does not have.
MEMORY = "memory"


class HostFacts(Record, frozen=True, kw_only=True):
    """The operating system and what it runs on. `virtualised` is None where it is not known.

    `product` is the machine's name in the firmware, `hypervisor` that of the hypervisor below it.
    """

    os_name: str
    os_version: str
    kernel: str
    machine: str
    python: str
    virtualised: bool | None
    hypervisor: str = ""
    container: bool = False
    product: str = ""


class CpuFacts(Record, frozen=True, kw_only=True):
    """The processors that this machine shows; in a virtual machine they are its own, not the host's.

    `numa_nodes` are those with processors. `quota_cpus` is the processor time that this program's control groups may
    use: seconds in a second.
    """

    model_name: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    logical_cpus: int
    max_mhz: float | None
    caches: dict[str, str]
    numa_nodes: int | None
    flags: list[str]
    base_mhz: float | None = None
    smt: bool | None = None
    quota_cpus: float | None = None


class MemoryModule(Record, frozen=True, kw_only=True):
    """One memory module as the firmware lists it; `mega_transfers` are millions a second."""

    size_bytes: int
    kind: str = ""
    mega_transfers: int | None = None


class MemoryFacts(Record, frozen=True, kw_only=True):
    """The machine's memory. `total_bytes` is what is installed, or what the kernel can use where `source` says so.

    `limit_bytes` is what this program's control group may use of it. `apart_bytes` are those of NUMA nodes without
    processors, of a GPU or an expander, which do not count.
    """

    total_bytes: int
    source: str
    usable_bytes: int
    limit_bytes: int | None = None
    ecc: bool | None = None
    modules: list[MemoryModule] = []
    apart_bytes: int = 0


class DiskFacts(Record, frozen=True, kw_only=True):
    size_bytes: int
    kind: str
    model: str = ""


class NetworkCard(Record, frozen=True, kw_only=True):
    """A network card: its ports' fastest present rate. `kind` is Ethernet, InfiniBand or virtual."""

    kind: str
    driver: str = ""
    ports: int = 1
    megabits: int | None = None


class MigFacts(Record, frozen=True, kw_only=True):
    """A part of a GPU that MIG gives away, or a partition of an AMD GPU.

    Its `profile` is named as the vendor does, for example 3g.40gb or CPX/NPS4.
    """

    uuid: str
    profile: str
    memory_bytes: int | None


class GpuFacts(Record, frozen=True, kw_only=True):
    """One GPU as its driver describes it.

    `memory_bytes` is what the driver reports, less than what is marketed; a GPU that shares the host's memory has none.
    `mig_devices` are parts of which a program sees one, `partitions` those of which it sees all, each as a GPU. `links`
    counts the active direct links to each peer: another GPU's UUID, "switch", or "unknown". `paths` gives the nearest
    thing that this GPU and another (by UUID) share on PCIe, in the words of `nvidia-smi topo`: PIX, PXB, PHB, NODE or
    SYS.
    `unanswered` has the driver's reason for each fact that every GPU has and that it did not state.
    """

    name: str
    uuid: str
    memory_bytes: int | None
    max_sm_mhz: float | None
    pcie_generation: int | None
    pcie_width: int | None
    driver: str
    vendor: str = "NVIDIA"
    cuda: str = ""
    compute_capability: str = ""
    max_memory_mhz: float | None = None
    memory_bus_bits: int | None = None
    memory_type: str = ""
    pci_bus_id: str = ""
    ecc: bool | None = None
    mig: bool | None = None
    mig_devices: list[MigFacts] = []
    partitions: list[MigFacts] = []
    power_limit_w: float | None = None
    power_default_w: float | None = None
    virtualisation: str = ""
    link_name: str = ""
    links: dict[str, int] = {}
    paths: dict[str, str] = {}
    shares_host_memory: bool = False
    unanswered: dict[str, str] = {}

    @property
    def pcie(self) -> str:
        """Its link to the host, for example "PCIe Gen5 x16"; empty where the driver does not report it."""
        known = self.pcie_generation and self.pcie_width
        return f"PCIe Gen{self.pcie_generation} x{self.pcie_width}" if known else ""


class MachineFacts(Record, frozen=True, kw_only=True):
    host: HostFacts
    cpu: CpuFacts
    memory: MemoryFacts
    disks: list[DiskFacts]
    root_bytes: int
    network: list[NetworkCard]
    gpus: list[GpuFacts]
