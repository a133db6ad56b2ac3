"""GPUs: which one a rank uses, its memory and streams, kernels on it, and handles of its blocks.

The floors above import from here; `_device` (devices and their memory) and `_pinned` (host memory
for messages) are used as namespaces. What moves values is for `comm` alone, and `_info` for the
command line.
"""

from distarray.comm.cuda import _device, _pinned
from distarray.comm.cuda._ipc import close_unread
from distarray.comm.cuda._launch import is_usable, launch, threads, upload, wrap
from distarray.comm.cuda._streams import followers, fork_stream

__all__ = [
    "_device",
    "_pinned",
    "close_unread",
    "followers",
    "fork_stream",
    "is_usable",
    "launch",
    "threads",
    "upload",
    "wrap",
]
