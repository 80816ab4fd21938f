"""Set the limits of a process and become the program to be held: limited.py DATA_BYTES PROCESSES FILE_BYTES PROGRAM…"""

import os
import resource
import sys

if __name__ == "__main__":
    data, processes, file_size = map(int, sys.argv[1:4])
    for limit, value in (
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606 - the program is given by the sandbox, without a shell
