"""Set the limits of a process and become the program to be held: limited.py DATA_BYTES PROCESSES FILE_BYTES PROGRAM…

Memory that belongs to no process cannot be counted by the process that watches the sandbox. So the calls that make such
memory fail: files in memory, System V segments and message queues, keys, and a further user namespace, which may mount
a file system in memory. io_uring could make calls beside this filter.
"""

import ctypes
import errno
import os
import platform
import resource
import struct
import sys

#: Numbers of the kernel's calls, on x86-64 and aarch64 (asm/unistd_64.h, asm-generic/unistd.h). `clone` and `clone3`
#: are apart: the first fails for a user namespace alone, the second cannot be inspected and is reported as unknown, so
#: that the C library uses the first.
_ARCHITECTURES = {
    "x86_64": (
        0xC000003E,
        {"clone": 56, "clone3": 435},
        {
            **{"memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "unshare": 272, "setns": 308},
            **{"add_key": 248, "request_key": 249, "keyctl": 250, "io_uring_setup": 425, "userfaultfd": 323},
        },
    ),
    "aarch64": (
        0xC00000B7,
        {"clone": 220, "clone3": 435},
        {
            **{"memfd_create": 279, "memfd_secret": 447, "shmget": 194, "msgget": 186, "unshare": 97, "setns": 268},
            **{"add_key": 217, "request_key": 218, "keyctl": 219, "io_uring_setup": 425, "userfaultfd": 282},
        },
    ),
}
#: Open files of one process: what sockets and pipes hold in the kernel is bounded by their number.
_OPEN_FILES = 256
_CLONE_NEWUSER = 0x10000000
_X32_CALLS = 0x40000000
# linux/bpf_common.h, linux/seccomp.h, linux/prctl.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


def call_filter(machine: str) -> bytes:
    """Return the program, in the kernel's instructions (struct sock_filter), by which it lets calls fail."""
    architecture, apart, refused = _ARCHITECTURES[machine]
    refuse = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    steps = [
        *((_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), refuse),
        *((_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32_CALLS), refuse),
        *((_EQUAL, 0, 1, apart["clone3"]), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)),
    ]
    for number in refused.values():
        steps += [(_EQUAL, 0, 1, number), refuse]
    steps += [
        *((_EQUAL, 0, 3, apart["clone"]), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 0, 1, _CLONE_NEWUSER), refuse),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def refuse_calls() -> None:
    """Let the calls above fail in this process and all that it starts. Raises OSError where the kernel cannot."""
    program = call_filter(platform.machine())
    steps = ctypes.create_string_buffer(program)
    # struct sock_fprog: the number of instructions, and where they begin
    packed = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(steps)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for options in ((_PR_SET_NO_NEW_PRIVS, 1, 0), (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(packed))):
        if prctl(*options, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the kernel does not filter calls (seccomp)")


if __name__ == "__main__":
    data, processes, file_size = map(int, sys.argv[1:4])
    for limit, value in (
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    refuse_calls()
    os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606 - the program is given by the sandbox, without a shell
