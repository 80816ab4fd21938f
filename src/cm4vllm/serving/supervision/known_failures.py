"""Known failures of a server, by the lines of its log, each with one remedy.

Patterns are matched, without regard to case, against the lines of a log that say why it failed; the first failure
that fits counts, so the narrow ones come first. Texts are those of vLLM 0.32.0, PyTorch and huggingface_hub. Each
repetition in a pattern has a bound: a line of a log may be of any length.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFailure:
    """One kind of failure: its name, what its log says (any of the patterns), and the remedy."""

    name: str
    patterns: tuple[str, ...]
    remedy: str

    def fits(self, text: str) -> bool:
        return any(re.search(pattern, text, re.IGNORECASE) for pattern in self.patterns)


def _ended_by(signal: int) -> str:
    """Return the pattern of vLLM's line about engines of which one was ended by a signal."""
    return rf"Failed core proc\(s\): \{{[^}}]{{0,300}}: -{signal}\b"


KNOWN_FAILURES = (
    KnownFailure("disk", (r"No space left on device",), "free space on the disk, or set TMPDIR to another one"),
    KnownFailure(
        "shared-memory",
        (r"Insufficient space in /dev/shm",),
        "give the container more shared memory: docker run --shm-size=16g or --ipc=host; of --container in "
        "--container_args",
    ),
    KnownFailure(
        "container-limit",
        (r"error setting rlimit", r"setrlimit .{0,300}Operation not permitted"),
        "lower the limits of containers (`ulimit -Hn` and `ulimit -Hu` show what is allowed): default_ulimits in "
        "containers.conf, or in --container_args what `podman run` takes for it: --ulimit nofile=NUMBER",
    ),
    KnownFailure(
        "container-gpu",
        (r"unresolvable CDI devices", r"could not select device driver"),
        "install NVIDIA's Container Toolkit and configure the engine with nvidia-ctk; doctor,mlperf shows the command",
    ),
    KnownFailure(
        "port-variable",
        (r"VLLM_PORT '.{0,300}' (?:appears to be a URI|must be a valid integer)",),
        "unset VLLM_PORT: vLLM takes it for a port of its own, and Kubernetes sets it to a URI in every pod beside a "
        "service named vllm; in a pod, rename that service or set enableServiceLinks: false",
    ),
    KnownFailure("port", (r"address already in use",), "leave --port out to have a free one chosen"),
    KnownFailure(
        "option",
        (r"unrecognized arguments", r"error: argument"),
        "correct --extra_args: this vLLM does not take them; `vllm serve --help=all` lists what it takes",
    ),
    KnownFailure(
        "architecture",
        (r"architectures? .{0,300} (?:is|are) not supported",),
        "use a model whose architecture this vLLM supports, or another release: --adr.vllm.tags=_version.<release>",
    ),
    KnownFailure("context", (r"max_model_len .{0,300} is greater than the derived",), "lower --max_model_len"),
    KnownFailure(
        "kv-cache",
        (r"KV cache is needed, which is larger than", r"No available memory for the cache blocks"),
        "lower --max_model_len, or give keys and values more memory: on a CPU --kv_cache_space=<GiB>, on a GPU "
        "--gpu_memory_utilization",
    ),
    KnownFailure(
        "gpu-taken",
        (r"Free memory on device .{0,300} on startup",),
        "end the other programs that use the GPU (nvidia-smi lists them), or lower --gpu_memory_utilization",
    ),
    KnownFailure(
        "gpu-memory",
        (r"CUDA out of memory", r"HIP out of memory", r"torch\.OutOfMemoryError"),
        "split the model among more GPUs (--tp_size), lower --max_num_seqs or --max_num_batched_tokens, or serve "
        "a smaller or more quantised model",
    ),
    KnownFailure(
        "host-memory",
        (
            r"can't allocate memory",
            r"Cannot allocate memory",
            r"MemoryError",
            r"Available memory on node",
            r"available memory .{0,300} on startup",
        ),
        "free memory, serve a smaller model, or lower --kv_cache_space",
    ),
    KnownFailure(
        "remote-code",
        (r"contains custom code which must be executed", r"trust_remote_code=True"),
        "add --trust_remote_code if you have read the model's code and trust it",
    ),
    KnownFailure(
        "gated",
        (r"gated repo", r"401 Client Error", r"403 Client Error", r"is restricted and you are not in the authorized"),
        "accept the model's licence on its hub, and set HF_TOKEN",
    ),
    KnownFailure(
        "hub",
        (
            r"outgoing traffic has been disabled",
            r"LocalEntryNotFoundError",
            r"offline mode is enabled",
            r"ConnectionError",
        ),
        "connect this machine to the hub, or get the model first: cm run script --tags=get,ml-model",
    ),
    KnownFailure(
        "no-model",
        (r"Repo id must be in the form", r"Repository Not Found", r"RepositoryNotFoundError"),
        "correct --vllm_model_name: no folder and no model on the hub has that name",
    ),
    KnownFailure(
        "weights",
        (r"SafetensorError", r"InvalidHeader", r"MetadataIncompleteBuffer", r"incomplete metadata"),
        "get the model again: its weights are damaged (cm run script --tags=get,ml-model --renew)",
    ),
    KnownFailure(
        "bitsandbytes",
        (
            r"(?:Unknown|Invalid) quantization method: bitsandbytes",
            r"Load format [`']bitsandbytes[`'] is not supported",
        ),
        "install the plugin vllm-bnb-plugin beside vLLM, which does not serve such weights itself since 0.28, or take "
        "--vllm_version=0.27.1",
    ),
    KnownFailure(
        "quantization",
        (
            r"Cannot find the config file for",
            r"Quantization method .{0,300} does not match",
            r"quantization method .{0,300} is not supported",
            r"Unknown quantization method",
        ),
        "leave --quantization out, so that the checkpoint's own method is taken, or serve a quantised checkpoint",
    ),
    KnownFailure("dtype", (r"is not supported for quantization method",), "give --dtype=bfloat16"),
    KnownFailure(
        "bfloat16",
        (r"Bfloat16 is only supported on GPUs with compute capability",),
        "give --dtype=float16: this GPU does not compute in bfloat16",
    ),
    KnownFailure(
        "kernel-image",
        (
            r"no kernel image is available",
            r"invalid device function",
            r"hipErrorNoBinaryForGpu",
            r"GPUs with compute capability below",
        ),
        "take a vLLM that is built for this GPU's architecture: another release, --adr.vllm.tags=_version.<release>, or"
        " one of your own, --vllm_python",
    ),
    KnownFailure(
        "driver-older",
        (
            r"device kernel image is invalid",
            r"unsupported toolchain",
            r"ErrorUnsupportedPtxVersion",
            r"driver version is insufficient",
        ),
        "update the GPU's driver to one for the CUDA release that this vLLM was built with (`nvidia-smi` shows the "
        "newest release that the driver runs), or take a vLLM built with an older one, "
        "--adr.vllm.tags=_version.<release>",
    ),
    KnownFailure(
        "gpu-feature",
        (
            r"Feature '[^']{1,200}' (?:not supported on|requires) \.target",
            r"fp8e\w{1,9} (?:data type is )?not supported",
        ),
        "serve what this GPU has instructions for: --dtype=float16 where it lacks bfloat16 (.bf16); where it lacks FP8 "
        "(fp8e4nv, .e4m3), leave --kv_cache_dtype out and serve a checkpoint without FP8",
    ),
    KnownFailure(
        "nvcc",
        (r"nvcc\s{1,9}fatal", r"No supported CUDA architectures found"),
        "set CUDA_HOME to a CUDA toolkit that knows this GPU, as CUDA_HOME=/usr/local/cuda-13.0 before the command: "
        "FlashInfer compiles kernels with its nvcc when the server starts",
    ),
    KnownFailure(
        "kernels",
        (
            r"Could not find nvcc",
            r"No such file or directory: 'nvcc'",
            r"AssertionError: \w{1,90}\.h not found",
            r"flashinfer-cubin is missing",
        ),
        "give this vLLM FlashInfer's compiled kernels, where a network is: PYTHON -m vllm.entrypoints.cli.main "
        "download-kernels, with the Python of get,vllm; or install a CUDA toolkit with nvcc and set CUDA_HOME to it: "
        "what FlashInfer has no compiled kernel for is compiled, or downloaded, when the server starts",
    ),
    KnownFailure(
        "ptxas",
        (r"Value 'sm_\w{1,60}' is not defined for option", r"PTXAS error"),
        "set TRITON_PTXAS_PATH to the ptxas of a CUDA toolkit that knows this GPU, as "
        "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas before the command: the one that Triton brings does not",
    ),
    KnownFailure(
        "gfx",
        (
            r"requires gfx\d{1,9}",
            r"gfx\w{1,9}-only",
            r"GPU archs? .{0,300}gfx.{0,60} (?:invalid|not supported)",
            r"Unknown GPU architecture: gfx",
            r"\bassert(?:ionerror:)? .{0,300}gfx\d",
            r"supported (?:on|for|by) gfx\d",
            r"gfx\d\w{0,60} is (?:not |un)supported",
        ),
        "set VLLM_ROCM_USE_AITER=0 before the command: a kernel of AITER does not exist for this GPU; otherwise take "
        "another release, --adr.vllm.tags=_version.<release>",
    ),
    KnownFailure(
        "compiler",
        (r"Failed to find C compiler", r"Python\.h: No such file", r"cannot find -lcuda"),
        "install a C compiler and Python's headers where the server runs, as gcc and python3-dev: Triton compiles "
        "kernels when the server starts",
    ),
    KnownFailure(
        "operator",
        (
            r"'_OpNamespace' '_C\w{0,60}' object has no attribute",
            r"operator \S{1,90} does not exist",
            r"_C\w{0,60}::\w{1,60}\(\) expected at most \d{1,9} argument",
            r"Could not run '\S{1,90}' with arguments",
        ),
        "serve a checkpoint that this backend has the operators for: on a CPU FP8-dynamic, INT8 or W4A16",
    ),
    KnownFailure(
        "int8-amx",
        (r"mat1 must be a 2D tensor",),  # int8_scaled_mm_with_quant, which vLLM takes where the processor has AMX
        "quantise to FP8 (--quantize=fp8-dynamic), or serve on a GPU or a processor without AMX: the INT8 kernel of "
        "vLLM for AMX does not take what the encoder of a speech model gives it",
    ),
    KnownFailure(
        "pipeline",
        (r"assert (?:self\.)?intermediate_tensors is not None", r"pipeline parallel\w{0,60} is not supported"),
        "leave --pp_size out: this backend has no pipeline parallelism",
    ),
    KnownFailure(
        "divisible",
        (r"must be divisible by (?:the )?(?:tensor|pipeline)",),
        "give --tp_size a number that divides the model's attention heads",
    ),
    KnownFailure(
        "binding",
        (r"Not enough allowed NUMA nodes", r"CPU affinity", r"omp.{0,300}bind"),
        "set the binding yourself: --cpu_binding, core numbers of each worker such as 0-3|4-7",
    ),
    KnownFailure(
        "ray",
        (r"Failed to import Ray", r"does not support ray", r"Ray is not installed"),
        "leave --distributed_executor_backend out, or use a build that has Ray",
    ),
    KnownFailure(
        "device-uuid",
        (r"invalid literal for int\(\) with base 10: '(?:GPU|MIG)-",),
        "name the GPUs by their numbers, as CUDA_VISIBLE_DEVICES=0,1 (`nvidia-smi -L` lists both): this vLLM does not "
        "read UUIDs; a MIG device, which has no number, is visible alone in a container that is given only that device",
    ),
    KnownFailure(
        "devices",
        (
            r"not enough (?:GPUs|devices)",
            r"world size .{0,300} is larger than the number of available",
            r"CUDA_VISIBLE_DEVICES",
            r"invalid device ordinal",
        ),
        "lower --tp_size to the number of GPUs that are visible",
    ),
    KnownFailure(
        "driver-updated",
        (r"Driver/library version mismatch", r"NVMLError_LibRmVersionMismatch"),
        "restart the machine: the NVIDIA driver was updated, and the kernel still has the earlier one loaded",
    ),
    KnownFailure(
        "forward-compatibility",
        (r"forward compatibility was attempted",),
        "update the host's driver, or take an image with an older CUDA: only GPUs for data centres run a newer CUDA "
        "than their driver's; without a container, take the compatibility library (cuda-compat) out of LD_LIBRARY_PATH",
    ),
    KnownFailure(
        "gpu-fault",
        (r"uncorrectable ECC error", r"fallen off the bus", r"GPU is lost"),
        "the GPU itself fails: `dmesg` shows how (Xid); reset it (nvidia-smi --gpu-reset) or restart the machine, and "
        "replace the GPU if the error comes again",
    ),
    KnownFailure(
        "fabric-manager",
        (r"Error 802: system not yet initialized", r"cudaErrorSystemNotReady"),
        "start NVIDIA's Fabric Manager, in the version of the driver: systemctl start nvidia-fabricmanager",
    ),
    KnownFailure(
        "driver",
        (
            r"driver on your system is too old",
            r"no CUDA-capable device",
            r"No CUDA GPUs are available",
            r"Failed to infer device type",
            r"Device string must not be empty",
            r"Failed to initialize NVML",
        ),
        "update the GPU's driver, or take the build for this machine: --adr.vllm.tags=_cpu",
    ),
    KnownFailure(
        "gloo",
        (
            r"Gloo connectFullMesh failed",
            r"gloo.{0,300}Connection (?:refused|timed out)",
            r"Dist(?:Network|Store)Error",
            r"client socket (?:has|cannot)",
        ),
        "the processes do not reach each other at the address of this host's name: set GLOO_SOCKET_IFNAME and "
        "NCCL_SOCKET_IFNAME to the network interface that they share (`ip -br address` lists them; lo on one machine), "
        "open its ports in the firewall, and correct /etc/hosts where it maps the name to 127.0.0.1 or 127.0.1.1 and "
        "there are several nodes",
    ),
    KnownFailure(
        "nccl",
        (r"NCCL error", r"ncclInternalError", r"ncclSystemError"),
        "the GPUs cannot reach each other: set NCCL_DEBUG=INFO and read the log",
    ),
    KnownFailure(
        "installation",
        (r"ModuleNotFoundError", r"ImportError", r"cannot open shared object", r"undefined symbol"),
        "install what it lacks where it is a vLLM of your own (--vllm_python); else install it again: "
        "cm run script --tags=install,vllm,_VARIANT --renew, with _cpu, _cuda or _rocm",
    ),
    KnownFailure(
        "instruction",
        (
            r"Illegal instruction(?! was encountered)",
            r"killed by SIGILL",
            r"died unexpectedly \(exit code: -4\)",
            _ended_by(4),
        ),
        "give --dtype=float32 if the model is served as bfloat16: this processor, or the virtual machine, lacks an "
        "instruction (AMX, AVX-512) that this vLLM uses for it; otherwise use another machine",
    ),
    KnownFailure(
        "killed",
        (r"killed by SIGKILL", r"died unexpectedly \(exit code: -9\)", _ended_by(9)),
        "check whether the kernel ended it for lack of memory (`dmesg`); if so, serve a smaller model or lower "
        "--kv_cache_space",
    ),
    KnownFailure(
        "bus-error",
        (r"Bus error", r"killed by SIGBUS", r"died unexpectedly \(exit code: -7\)", _ended_by(7)),
        "check the room in /dev/shm (`df -h /dev/shm`), which a container gets by docker run --shm-size=16g or "
        "--ipc=host; where there is enough, a file of the model is damaged or its disk fails (`dmesg`)",
    ),
    KnownFailure(
        "crash",
        (
            r"illegal (?:memory access|instruction was encountered)",
            r"unspecified launch failure",
            r"misaligned address",
            r"device-side assert triggered",
            r"Memory access fault by GPU",
            r"Segmentation fault",
            r"killed by SIGSEGV",
            r"died unexpectedly \(exit code: -11\)",
            _ended_by(11),
        ),
        "a kernel of this vLLM fails on this GPU or model: start it with --extra_args=--enforce-eager, then another "
        "release, --adr.vllm.tags=_version.<release>; if other models fail, too, `dmesg` shows faults of the GPU (Xid)",
    ),
    KnownFailure(
        "number",
        (r"invalid literal for int\(\) with base 10",),
        "correct the value in quotes, which must be a whole number: CUDA_VISIBLE_DEVICES holds numbers separated by "
        "commas, without an empty part as in `0,`; else it is of another variable, or of an option in --extra_args",
    ),
    KnownFailure(
        "peer",
        (r"Connection (?:closed|reset) by peer",),
        "find why another process of this server ended, which closed the connection: the log names its error further "
        "up, or that of another node does; `dmesg` shows whether the kernel ended it for lack of memory",
    ),
    KnownFailure(
        "unexplained",
        (
            r"Engine (?:core initialization failed|process failed to start)",
            r"EngineDeadError",
            r"WorkerProc initialization failed",
        ),
        "start it once more with VLLM_LOGGING_LEVEL=DEBUG set before the command: its engine ended without a reason in "
        "the log; `dmesg` shows whether the kernel ended it for lack of memory",
    ),
)


def known_failure(text: str) -> KnownFailure | None:
    """Return the first known failure that a text names, None where it names none."""
    return next((failure for failure in KNOWN_FAILURES if failure.fits(text)), None)
