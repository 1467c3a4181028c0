"""`python -m tests.support.without_ipv6 PROGRAM ARGUMENT…`: a program on a machine without IPv6.

A seccomp filter answers as a kernel that was started with `ipv6.disable=1`: sockets of the family AF_INET6 fail with
EAFNOSUPPORT. The filter stays with the program's children.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_SOCKET_OF_X86_64 = 41
_NUMBER_AT, _FAMILY_AT = 0, 16  # of a system call and of its first argument, in `struct seccomp_data`


def _filter() -> bytes:
    """Instructions of `struct sock_filter`: code, jump if true, jump if false, value."""
    program = [
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_IF_EQUAL, 0, 3, _SOCKET_OF_X86_64),
        (_LOAD, 0, 0, _FAMILY_AT),
        (_JUMP_IF_EQUAL, 0, 1, socket.AF_INET6),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _take_ipv6_away() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(_filter())
    program = struct.pack("HxxxxxxP", 6, ctypes.addressof(instructions))
    for operation in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(program), 0, 0),
    ):
        if libc.prctl(*operation) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _take_ipv6_away()
    os.execvp(sys.argv[1], sys.argv[1:])
