"""The load plan: what is to be read where, from a template and a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from distarray.checkpoint._adapters import Finish, adapter_of, maker_of
from distarray.checkpoint._fill import Target
from distarray.checkpoint._save_plan import PerRank
from distarray.checkpoint._tied_memory import (
    MemoryPiece,
    find_overlaps,
    memory_of,
    values_differ,
)
from distarray.checkpoint.storage._blocks import Block, overlaps_itself
from distarray.checkpoint.storage._chunks import Reader
from distarray.checkpoint.storage._dtypes import can_cast, describe
from distarray.checkpoint.storage._manifest import Entry, Manifest
from distarray.checkpoint.storage._values import (
    Node,
    children_of,
    decode,
    is_array,
    is_container,
    join_name,
    kind_of,
    walk,
)
from distarray.comm import list_first
from distarray.errors import CheckpointError, StateDictError


class LoadPlan:
    """Collects what a template wants.

    Attributes
    ----------
    state
        All of the template; adapters look there for what belongs together.
    manifest
        Of the checkpoint.
    rank, size
        This rank, and how many load.
    targets
        What is to be read.
    """

    def __init__(self, manifest: Manifest, state: Any, rank: int, size: int, casts: bool) -> None:
        self.state = state
        self.manifest = manifest
        self.rank, self.size = rank, size
        self._casts = casts
        self._nodes = dict(walk(manifest.tree))
        self._leaves = [name for name, node in self._nodes.items() if not is_container(node)]
        self._within = group_by_container(self._leaves)
        self._used: set[str] = set()
        self.targets: list[Target] = []
        self._filled: dict[object, MemoryPiece] = {}  # by memory
        self._pieces: list[MemoryPiece] = []
        self._tied: list[list[tuple[MemoryPiece, MemoryPiece]]] = []  # of two names each
        self._missing: list[str] = []
        self._wrong: list[str] = []
        self._differing: list[str] = []
        self._left_out = Containers(())

    # --- for adapters ----------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Tell whether the checkpoint has something of this name."""
        return name in self._nodes

    def names(self, name: str) -> list[str]:
        """Return the names of what a container of the checkpoint has, without its own."""
        start = f"{name}." if name else ""
        return [leaf[len(start) :] for leaf in self._within.get(name, ())]

    def children(self, name: str) -> list[tuple[Any, str]]:
        """Return the keys of a container of the checkpoint, and what they are called in full."""
        return [(key, join_name(name, key)) for key, _ in children_of(self._nodes.get(name))]

    def is_array(self, name: str) -> bool:
        """Tell whether the checkpoint has an array of this name."""
        return is_array(self._nodes.get(name))

    def refuse(self, why: str) -> None:
        """Take note of something that does not fit."""
        self._wrong.append(why)

    def refuse_if_strict(self, why: str) -> None:
        """Take note of something that does not fit unless names may differ."""
        self._differing.append(why)

    def entry(self, name: str) -> Entry | None:
        """Return the array of a name; None, of which note is taken, where there is none."""
        if name not in self._nodes:
            self._missing.append(name)
            return None
        node = self._nodes[name]
        self._used.add(name)
        if not is_array(node):
            self.refuse(f"{name} is no array in the checkpoint, but {_describe(node)}")
            return None
        return self._array(node)

    def fill(self, name: str, block: Block) -> None:
        """Let an array be read into what this rank holds of it; take note where it does not fit."""
        entry = self.entry(name)
        if entry is None:
            return
        spec = block.spec
        if entry.shape != block.shape:
            self.refuse(f"{name} has shape {entry.shape} in the checkpoint, and {block.shape} here")
            return
        if entry.spec != spec and not (self._casts and can_cast(entry.spec, spec)):
            hint = "" if self._casts else " (cast=True converts)"
            saved, here = describe(entry.spec), describe(spec)
            self.refuse(f"{name} has dtype {saved} in the checkpoint, and {here} here{hint}")
            return
        if any(map(overlaps_itself, block.pieces)):
            self.refuse(
                f"{name} has items that share memory, as in a view by expand(); pass a copy"
            )
            return
        mine = memory_of(name, entry, block)
        others = [self._filled.setdefault(piece.key, piece) for piece in mine]
        firsts = {other.name for other in others}
        if len(firsts) == 1 and name not in firsts:
            self._tied.append(list(zip(others, mine, strict=True)))
        else:
            self._pieces += mine
            self.fill_entry(entry, block)

    def fill_entry(self, entry: Entry, block: Block) -> None:
        """Let an array, that fits, be read into what this rank holds of it."""
        self.targets.append(Target(entry, block))

    def value(self, name: str) -> Any:
        """Return the array of a name, or the plain value, perhaps a container of such."""
        node = self._nodes[name]
        if is_array(node):
            return self._array(node)
        if isinstance(node, dict) and "per_rank" in node:
            return list(map(decode, node["per_rank"]))
        if isinstance(node, dict) and "object" in node:
            raise KeyError(name)
        try:
            return decode(node)
        except CheckpointError:
            raise KeyError(f"{name} is a container of arrays; use the names in it") from None

    def saved_value(self, name: str) -> Finish | None:
        """Return what makes the value that was saved under a name; None where there is none."""
        if name not in self._nodes:
            self._missing.append(name)
            return None
        node = self._nodes[name]
        self._used.update((name, *self._within.get(name, ())))
        return self._make(node, name)

    # --- templates -------------------------------------------------------------------------------

    def fit(self, template: Any) -> Finish:
        """Return what makes the result of a whole template; all as it was saved for None."""
        if isinstance(template, Mapping) and template and adapter_of(template) is None:
            children = [join_name("", key) for key, _ in children_of(self.manifest.tree)]
            asked = Containers(join_name("", key) for key in template)
            self._left_out = Containers(name for name in children if not asked.meet(name))
            made = {
                key: self._plan_value(value, join_name("", key)) for key, value in template.items()
            }
            return lambda: _rebuild(template, {key: one() for key, one in made.items()})
        return self._plan_value(template, "")

    def _plan_value(self, template: Any, name: str) -> Finish:
        adapter = adapter_of(template)
        if adapter is not None:
            return adapter.load(template, self, name)
        if _is_active(template) or (_is_container(template) and self._holds_arrays(name)):
            if isinstance(template, Mapping):
                made = {k: self._plan_value(v, join_name(name, k)) for k, v in template.items()}
                return lambda: _rebuild(template, {key: one() for key, one in made.items()})
            items = [self._plan_value(v, join_name(name, i)) for i, v in enumerate(template)]
            return lambda: _rebuild(template, [one() for one in items])
        found = self.saved_value(name)
        return found if found is not None else lambda: template

    def _holds_arrays(self, name: str) -> bool:
        """Tell whether what was saved under a name is an array, or has one in it."""
        names = (name, *self._within.get(name, ()))
        return any(is_array(self._nodes[one]) for one in names if one in self._nodes)

    def check(self, strict: bool) -> tuple[list[str], list[str]]:
        """Return which names the checkpoint lacks, and which the template; raise if it misfits."""
        for target in self.targets:
            _ = target.entry.chunks  # which raises where the manifest is damaged
        missing = self._missing
        unexpected = [
            name
            for name in self._leaves
            if name not in self._used and not self._left_out.hold(name)
        ]
        wrong = [*self._wrong, *(self._differing if strict else ())]
        if strict and not wrong:
            wrong = self._find_differing_ties()
        if not wrong:
            wrong = self._find_clashes()
        if strict and unexpected:
            wrong.insert(0, f"the checkpoint has and the state lacks {list_first(unexpected)}")
        if strict and missing:
            wrong.insert(0, f"the checkpoint lacks {list_first(missing)}")
        if wrong:
            hint = ", or strict=False for names that differ" if strict and not self._wrong else ""
            raise StateDictError(
                f"{self.manifest.directory or self.manifest.path} does not fit the state: "
                f"{list_first(wrong, '; ')}. Pass the state that was saved, in any "
                f"layout{hint}"
            )
        return missing, unexpected

    def _find_differing_ties(self) -> list[str]:
        """Return in words which names stand for the same memory and for different values."""
        with Reader(self.manifest, verify=False) as reader:
            return [
                f"{pairs[0][0].name} and {pairs[0][1].name} are the same array or tensor here "
                "(tied, or a view), and differ in the checkpoint: untie them, or leave all but "
                f"{pairs[0][0].name} out by strict=False"
                for pairs in self._tied
                if any(values_differ(reader, one, other) for one, other in pairs)
            ]

    def _find_clashes(self) -> list[str]:
        """Return in words which names share part of their memory, and cannot both be filled."""
        with Reader(self.manifest, verify=False) as reader:
            return [
                f"{one.name} and {other.name} share memory here, and the checkpoint does not have "
                "the same values for what they share: pass arrays with memory of their own"
                for one, other in find_overlaps(self._pieces)
                if values_differ(reader, one, other)
            ]

    # --- what was stored -------------------------------------------------------------------------

    def _array(self, node: Node) -> Entry:
        return self.manifest.arrays[node["array"]]

    def _make(self, node: Node, name: str) -> Finish:
        if is_array(node):
            entry = self._array(node)
            otherwise = "distarray" if node.get("kind") == "tensor block" else "numpy"
            return maker_of(node.get("kind"), otherwise)(entry, self)
        if isinstance(node, dict):
            kind = kind_of(node)
            if kind == "per_rank":
                return self._own(node[kind], name)
            if kind == "object":
                return self._make(node["of"], name)
            if kind == "dict":
                keys = [decode(key) for key, _ in node[kind]]
                pairs = [
                    (key, self._make(child, join_name(name, key)))
                    for key, (_, child) in zip(keys, node[kind], strict=True)
                ]
                return lambda: {key: made() for key, made in pairs}
            if kind in ("list", "tuple"):
                items = [self._make(one, join_name(name, i)) for i, one in enumerate(node[kind])]
                build = list if kind == "list" else tuple
                return lambda: build(made() for made in items)
        return lambda: decode(node)

    def _own(self, values: list[Node], name: str) -> Finish:
        if len(values) != self.size and self.state is None:
            return lambda: PerRank(list(map(decode, values)))
        if len(values) != self.size:
            self.refuse(
                f"{name} was saved for each of {len(values)} ranks by itself, and {self.size} load "
                "it; leave it out of the state, and make it anew"
            )
            return lambda: None
        return lambda: decode(values[self.rank])


def _rebuild(template: Any, values: Any) -> Any:
    """Return values in a container of the template's type."""
    kind = type(template)
    if isinstance(template, Mapping):
        return values if kind is dict else kind(values) if issubclass(kind, dict) else values
    return kind(*values) if hasattr(template, "_fields") else kind(values)


def _is_container(template: Any) -> bool:
    """Tell whether a template asks for names or places in a container."""
    return isinstance(template, (Mapping, list, tuple)) and len(template) > 0


def _is_active(template: Any) -> bool:
    """Tell whether a container has something that says how it is to be loaded."""
    if not _is_container(template):
        return False
    items = template.values() if isinstance(template, Mapping) else template
    return any(
        adapter_of(item) is not None or isinstance(item, PerRank) or _is_active(item)
        for item in items
    )


def _describe(node: Node) -> str:
    return f"a {kind_of(node) or 'dict'}" if isinstance(node, dict) else repr(node)


def containers(name: str) -> Iterator[str]:
    """Yield a name, and those of the containers that it may be in."""
    yield name
    at = name.rfind(".")
    while at >= 0:
        yield name[:at]
        at = name.rfind(".", 0, at)


def group_by_container(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names that are in each container, in their order; all of them under ""."""
    found: dict[str, list[str]] = {"": list(names)}
    for name in found[""]:
        for container in containers(name):
            if container not in ("", name):
                found.setdefault(container, []).append(name)
    return found


class Containers:
    """Containers, to be asked for whether a name is within any of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._above = {above for name in self._names for above in containers(name)}

    def hold(self, name: str) -> bool:
        """Tell whether a name is one of them, or within one."""
        return any(one in self._names for one in containers(name))

    def meet(self, name: str) -> bool:
        """Tell whether a name is within one of them, or one of them within it."""
        return name in self._above or self.hold(name)
