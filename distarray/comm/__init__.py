"""Communication: who the ranks are, and moving bytes among them; nothing here knows arrays."""

from distarray.comm._communicator import Communicator
from distarray.comm._device_mesh import (
    DeviceMesh,
    default_mesh,
    default_placements,
    init_device_mesh,
    use_mesh,
)
from distarray.comm._log import CommLog
from distarray.comm._requests import Request
from distarray.comm._world import world
from distarray.comm.failures import _abort

__all__ = [
    "CommLog",
    "Communicator",
    "DeviceMesh",
    "Request",
    "default_mesh",
    "default_placements",
    "init_device_mesh",
    "use_mesh",
    "world",
]

_abort.install()
