"""What messages say of placements and meshes of torch's, which have the names that ours have."""

from __future__ import annotations


def twin_of(value: object) -> str:
    """Return the end of a message about a value that is torch's, which names ours; else "".

    Parameters
    ----------
    value
        What was passed in the place of a placement or a mesh.
    """
    kind = type(value)
    if kind.__module__.partition(".")[0] != "torch":
        return ""
    if kind.__name__ == "Shard":
        twin = f"da.Shard({getattr(value, 'dim', 0)})"
    elif kind.__name__ == "Replicate":
        twin = "da.Replicate()"
    elif kind.__name__ == "Partial":
        twin = f"da.Partial({getattr(value, 'reduce_op', 'sum')!r})"
    elif kind.__name__ == "DeviceMesh":
        twin = "one that da.init_device_mesh makes"
    else:
        return ""
    return f" (this {kind.__name__} is torch's; take {twin})"
