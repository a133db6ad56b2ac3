"""The distributed array that users hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distarray.array import _convert, _describe, _petsc
from distarray.array._describe import Text
from distarray.array._methods import Methods
from distarray.array._operators import Operators
from distarray.array._protocols import Protocols
from distarray.array._repr import Printing
from distarray.array._scalars import Scalars
from distarray.comm import _backend
from distarray.core import check_distributed, new_array, set_array_class
from distarray.errors import ArgumentTypeError
from distarray.layout import Placement
from distarray.typing import AxisName, Buffer


class DistArray(Operators, Methods, Scalars, Printing, Protocols):
    """An array whose items lie on the processes of a mesh, each in the part a layout says.

    Make one with `distribute_array`, `DistArray.from_local` or a creation function. Reading shape,
    dtype or layout never communicates. Operators and functions follow NumPy; a result that is a
    sum (min, max, ...) over processes stays `Partial` until something needs its value.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.ones((4, 3), placements=[da.Shard(0)])
    >>> print((2 * x).sum(axis=0), x.placements)
    [8. 8. 8.] (Shard(axis=0),)
    """

    __slots__ = ()

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ArgumentTypeError(
            "DistArray is not built by calling it; use da.distribute_array(value, mesh, "
            "placements), da.DistArray.from_local(block, mesh, placements) or da.zeros(...)"
        )

    @staticmethod
    def from_local(
        local: Any,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
        *,
        shape: Sequence[int] | None = None,
        check: bool = True,
    ) -> DistArray:
        """Return the array whose block on this process is `local`, without copying it.

        Parameters
        ----------
        local : array
            This process's block. A process outside the mesh passes any empty block.
        mesh : DeviceMesh, optional
            Default: the default mesh.
        placements : sequence of Placement, optional
            One per mesh axis.
        shape : sequence of int, optional
            The global shape. Without it the blocks' sizes along each sharded axis are added up.
        check : bool
            Compare shapes and dtypes of all blocks first (one small exchange over the mesh). With
            `check=False` nothing is sent: the split must be the default one, and without `shape`
            all blocks must be equally large.

        Raises
        ------
        LayoutError
            If the blocks do not fit together; with `check=True` on every rank of the mesh.
        DTypeError
            If the blocks differ in dtype.

        Notes
        -----
        Blocks may have any sizes, as long as together they tile the array: what is not the default
        split becomes the layout's `boundaries`. Integers under `Partial("avg")` become float64.

        Examples
        --------
        >>> import numpy as np
        >>> import distarray as da
        >>> x = da.DistArray.from_local(np.ones((2, 3)), placements=[da.Shard(0)])
        >>> x.shape == (2 * x.mesh.size, 3)
        True
        """
        block, layout = _convert.adopt(local, mesh, placements, shape, check)
        return new_array(block, layout)

    def to_local(self) -> Buffer:
        """Return this process's block itself (not a copy); outside the mesh it has size 0.

        Of a `Partial` array that an operation has computed it is read-only: what the blocks are
        reduced to is kept, and would not change with it. Write into `x`, or into the block of
        `x.copy()`.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.zeros(3, placements=[da.Replicate()])
        >>> x.to_local()[0] = 1
        >>> print(x)
        [1. 0. 0.]
        """
        if self._layout.has_partial and self._computed_source():
            return _backend.make_read_only(self._local)
        return self._local

    def full_array(self, dst: int | None = None) -> Any:
        """Return a copy of the global array, on every rank or on one (collective over the mesh).

        Parameters
        ----------
        dst : int, optional
            Position in the mesh (row-major) of the process that gets it. None: all of them do.

        Returns
        -------
        array or None
            None where another process gets it. Outside the mesh, without `dst`, the result is
            empty.

        Raises
        ------
        ArgumentError
            If `dst` is no position in the mesh.
        MismatchError
            If the ranks pass different ones.

        Notes
        -----
        With `dst` no other process needs memory for more than its block: each item travels once.

        Examples
        --------
        >>> import distarray as da
        >>> whole = da.arange(4).full_array(dst=0)
        >>> if whole is not None:  # on one process alone
        ...     print(whole)
        [0 1 2 3]
        """
        return _convert.gather(self, dst)

    def describe(self) -> Text:
        """Return who holds what, as text (no communication).

        Returns
        -------
        str
            The same on every process, and shown with its lines at a prompt: shape, dtype and bytes,
            mesh and placements, how large blocks are, and a line for each of the first 32
            processes. Whether boundaries follow from values (`Layout.is_counted`) is
            forgotten where equal ones were given otherwise.

        Examples
        --------
        >>> import distarray as da
        >>> da.print0(da.zeros((6, 4)).describe())
        DistArray of shape 6x4, float64, 192 B
        layout  6x4 [axis0:S(0)]
        mesh    1 process, on cpu
        blocks  1, of 6x4, 192 B
        <BLANKLINE>
        rank  axis0  axis 0  axis 1  shape  bytes
        ----  -----  ------  ------  -----  -----
           0      0  0:6     0:4     6x4    192 B
        """
        return _describe.describe(self)

    def redistribute(
        self,
        placements: Sequence[Placement] | None = None,
        *,
        mesh: Any = None,
        shard_order: Sequence[AxisName] | None = None,
        boundaries: Mapping[int, Sequence[int]] | None = None,
        async_op: bool = False,
        max_bytes: int | None = None,
    ) -> Any:
        """Return the same values under other placements or on another mesh (collective).

        The result has memory of its own, also where nothing changes; then
        `da.asarray(x, placements=...)` returns the array itself.

        Parameters
        ----------
        placements : sequence of Placement, optional
            One per axis of the mesh; default: this array's own, on another mesh the default ones.
        mesh : DeviceMesh, optional
            Default: this array's mesh. Processes of both meshes take part. Its device may be
            another one: the blocks go there last.
        shard_order : sequence of mesh axes, optional
            Which cuts first where several mesh axes shard one array axis; default: mesh order.
        boundaries : mapping of array axis to sequence of int, optional
            Offsets of the blocks along that axis, from 0 to its length; default: an even split.
        async_op : bool
            Return at once a handle with `.wait()` (the array) and `.test()` (whether it is there).
            Until then this array must not be written into; everything else may go on.
        max_bytes : int, optional
            Bound on scratch memory; more rounds are made to stay below it.

        Raises
        ------
        PlacementError
            If the placements do not fit the mesh or the array.
        LayoutError
            If the boundaries do not split the axis into as many blocks as there are.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.ones((4, 4), placements=[da.Shard(0)])
        >>> x.redistribute([da.Shard(1)]).placements
        (Shard(axis=1),)
        """
        cuts = (shard_order, boundaries)
        return _convert.redistribute(self, placements, mesh, cuts, async_op, max_bytes)

    def rebalance(self) -> DistArray:
        """Return the same values, cut evenly along every axis that is cut (collective).

        What follows values, or other boundaries, may have blocks of any lengths. Here they get
        those that a new array of this shape and these placements has, as `torch.chunk` splits.

        Returns
        -------
        DistArray
            With the placements and the shard order of this array, and no `boundaries`. This array
            itself where it has none. Each process receives the items of its new block that it
            does not have.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.arange(6)[2:]  # the first blocks are shorter, or empty
        >>> print(x.rebalance())
        [2 3 4 5]
        """
        layout = self._layout
        if layout.boundaries is None:
            return self
        cuts = (layout.shard_order, None)
        found: DistArray = _convert.redistribute(self, layout.placements, None, cuts, False, None)
        return found

    @property
    def mesh(self) -> Any:
        """The mesh."""
        return self._layout.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """One placement per mesh axis."""
        return self._layout.placements

    @property
    def device(self) -> Any:
        """Where the blocks live: "cpu", "cuda" (each on its rank's own GPU) or "cuda:<number>"."""
        return self.mesh.device

    def to_device(self, device: Any, /, *, stream: Any = None) -> DistArray:
        """Return the array on another device, with the same layout; nothing is sent between ranks.

        Parameters
        ----------
        device : str
            "cpu", "cuda" or "cuda:<number>", as for `init_device_mesh`; or another
            array's `x.device`.
        stream : optional
            None: the copies come after all work of the current stream.

        Returns
        -------
        DistArray
            Over a mesh of the same processes; the array itself where it is there already.

        Raises
        ------
        DeviceError
            If there is no such device here.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.ones(3)
        >>> x.to_device("cpu") is x
        True
        """
        if stream is not None:
            raise ArgumentTypeError(
                "to_device takes no stream=; make the stream current: with stream: x.to_device(...)"
            )
        return _convert.to_device(self, device)

    def to_petsc(self) -> Any:
        """Return a PETSc vector or dense matrix over the memory of the blocks (collective).

        Returns
        -------
        petsc4py.PETSc.Vec or petsc4py.PETSc.Mat
            A vector looks at the blocks, so that what is written into one is in the other; so does
            a matrix whose blocks are in Fortran order (`x.copy(order="F")`). Of others, and of
            blocks with gaps or read-only ones, it is a copy. None outside the mesh.

        Raises
        ------
        PlacementError
            If each process has not rows of its own, in the order of the processes.
        DTypeError
            If PETSc is built for other numbers.
        ShapeError
            If there are not one axis or two.
        DeviceError
            If the blocks are on GPUs.
        MissingPackageError
            If petsc4py is not installed.

        Notes
        -----
        PETSc remembers norms of what it has: after writing into the array call
        `vec.stateIncrease()`.

        Examples
        --------
        >>> import distarray as da
        >>> vec = da.ones(10).to_petsc()  # doctest: +SKIP
        """
        return _petsc.to_petsc(self)


def distribute_array(
    value: Any,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
    *,
    src: int | None = 0,
) -> DistArray:
    """Distribute a plain array over a mesh.

    Parameters
    ----------
    value : array_like
        The global value; only the source's is looked at. Of a stored array (see `asarray`) the
        source reads the blocks; with `src=None` each process reads its own.
    mesh : DeviceMesh, optional
        Default: the default mesh.
    placements : sequence of Placement, optional
        One per mesh axis. Default: the first mesh axis shards axis 0, the others replicate.
    src : int or None
        Position in the mesh (row-major) of the process whose `value` counts and is sent. None:
        every process has the same value already, and each takes its part without communication.

    Returns
    -------
    DistArray
        Its blocks are copies; a `DistArray` passed as `value` is redistributed.

    Raises
    ------
    DTypeError
        If the value's dtype cannot travel (objects).
    ArgumentError
        If `src` is no position in the mesh.
    FileError
        If a stored array cannot be read; on all processes.
    PlacementError
        If the placements do not fit the mesh or the value.

    Examples
    --------
    >>> import numpy as np
    >>> import distarray as da
    >>> x = da.distribute_array(np.arange(6).reshape(2, 3), placements=[da.Shard(1)])
    >>> print(x.sum(axis=0))
    [3 5 7]
    """
    if isinstance(value, DistArray):
        return value.redistribute(placements, mesh=mesh)
    block, layout = _convert.distribute(value, mesh, placements, src)
    return new_array(block, layout)


def redistribute(
    x: DistArray,
    placements: Sequence[Placement] | None = None,
    *,
    mesh: Any = None,
    shard_order: Sequence[AxisName] | None = None,
    boundaries: Mapping[int, Sequence[int]] | None = None,
    async_op: bool = False,
    max_bytes: int | None = None,
) -> Any:
    """Return the same values under other placements or on another mesh (collective).

    The function of the method `DistArray.redistribute`, which has the arguments' description.

    Examples
    --------
    >>> import distarray as da
    >>> da.redistribute(da.ones((4, 6)), [da.Shard(1)]).placements
    (Shard(axis=1),)
    """
    check_distributed("redistribute", x)
    cuts = (shard_order, boundaries)
    return _convert.redistribute(x, placements, mesh, cuts, async_op, max_bytes)


set_array_class(DistArray)
