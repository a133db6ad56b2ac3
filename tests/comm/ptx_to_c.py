"""Turn the code of a kernel for a GPU (PTX) into C: a statement for an instruction.

A thread of a block is a call, and goes as far as a barrier before the next one goes on. PTX is
described in NVIDIA's "Parallel Thread Execution ISA", whose terms are used here. An instruction
that our kernels do not have is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

TYPES = {
    **{f"s{n}": f"int{n}_t" for n in (8, 16, 32, 64)},
    **{f"{kind}{n}": f"uint{n}_t" for kind in "ub" for n in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
    "pred": "int",
    "f16": "_Float16",
}
SPECIAL = {"ctaid": "block", "nctaid": "blocks", "tid": "thread", "ntid": "threads"}

PRELUDE = r"""
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef uint64_t word;
static int refused;
static ucontext_t launcher, *threads_;
static word running;
static void wait(void) { swapcontext(&threads_[running], &launcher); }

static char *at(word address, word size, char *shared, word room) {
    if (address % size) refused = 1;
    else if (!shared) return (char *)address;
    else if (address + size <= room) return shared + address;
    else refused = 2;
    static char nowhere[16];
    return nowhere;
}
static double double_of(word bits) { double d; memcpy(&d, &bits, 8); return d; }
static float single_of(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static word shl(word a, word by, int bits) { return by < bits ? a << by : 0; }
static word shr(word a, word by, int bits) { return by < bits ? a >> by : 0; }
static word sar(int64_t a, word by, int bits) { return a >> (by < bits ? by : bits - 1); }
static word insert(word a, word b, word start, word length) {
    word mask = shl(length < 64 ? shl(1, length, 64) - 1 : -1, start, 64);
    return (shl(a, start, 64) & mask) | (b & ~mask);
}
"""

LAUNCH = r"""
enum { STACK = 1 << 16 };
static struct { word threads, block, blocks, *parameters; char *shared, *ended; } now;

static void thread(void) {
    run(running, now.threads, now.block, now.blocks, now.parameters, now.shared);
    now.ended[running] = 1;
}

/* Each thread goes as far as the next barrier, or to its end; then all go on. */
static void run_block(char *stacks) {
    for (word i = 0; i < now.threads; i++) {
        now.ended[i] = 0;
        getcontext(&threads_[i]);
        threads_[i].uc_stack.ss_sp = stacks + i * STACK;
        threads_[i].uc_stack.ss_size = STACK;
        threads_[i].uc_link = &launcher;
        makecontext(&threads_[i], thread, 0);
    }
    for (word left = 1; left;) {
        left = 0;
        for (running = 0; running < now.threads; running++)
            if (!now.ended[running]) {
                swapcontext(&launcher, &threads_[running]);
                left += !now.ended[running];
            }
    }
}

int launch(word blocks, word threads, word *parameters) {
    char *shared = malloc(ROOM + 1), *ended = malloc(threads);
    char *stacks = WAITS ? malloc(threads * STACK) : 0;
    threads_ = calloc(threads, sizeof *threads_);
    refused = 0;
    for (word block = 0; block < blocks; block++) {
        memset(shared, 0xa5, ROOM);
        now.threads = threads, now.block = block, now.blocks = blocks;
        now.parameters = parameters, now.shared = shared, now.ended = ended;
        if (WAITS) run_block(stacks);
        else for (running = 0; running < threads; running++) thread();
    }
    free(shared), free(ended), free(stacks), free(threads_);
    return refused;
}
"""


def to_c(ptx: str) -> str:
    """Return a program of C that does what a kernel's PTX says."""
    shared, room = {}, 0
    for align, name, size in re.findall(
        r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\]", ptx.partition(".entry")[0]
    ):
        room = -(-room // int(align)) * int(align)
        shared[name] = room
        room += int(size)
    parameters = re.findall(r"\.param \.u64 (\w+)", ptx)
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    # What instructions name beside registers; addresses of shared memory begin at 0.
    known = {name: f"parameters[{i}]" for i, name in enumerate(parameters)}
    known |= {name: f"{start}" for name, start in shared.items()}
    statements = "\n".join(_statements(body, known))
    waits = "bar.sync" in body
    return (
        f"{PRELUDE}\n#define WAITS {int(waits)}\n#define ROOM {room}\n"
        "static void run(word thread, word threads, word block, word blocks, word *parameters,"
        f" char *shared) {statements}\n{LAUNCH}"
    )


def _statements(body: str, known: dict[str, str]) -> Iterator[str]:
    for line in re.sub(r"//.*", "", body).replace("{%", "<%").splitlines():
        text = line.strip()
        # What is left in angles is a vector of registers.
        for part in filter(None, (p.strip() for p in re.split(r";|(?<=:)$|(?<=^[{}])", text))):
            if part in "{}":
                yield part
            elif part.endswith(":"):
                yield f"{part.replace('$', '')};"
            elif part.startswith(".reg"):
                yield _declaration(part)
            elif part.startswith("."):
                raise ValueError(f"no instruction: {part}")
            else:
                yield _instruction(part.replace("}", ">"), known)


def _declaration(text: str) -> str:
    _, type_, name = text.split()
    type_ = TYPES[type_[1:]]
    name = name[1:]
    if "<" not in name:
        return f"{type_} {name} = 0;"
    stem, count = name[:-1].split("<")
    return f"{type_} " + ", ".join(f"{stem}{i} = 0" for i in range(int(count))) + ";"


def _instruction(text: str, known: dict[str, str]) -> str:
    guard, text = re.fullmatch(r"(?:@(!?%\w+)\s+)?(.*)", text).groups()  # type: ignore[union-attr]
    name, rest = re.fullmatch(r"(\S+)\s*(.*)", text).groups()  # type: ignore[union-attr]
    operands = [_operand(o, known) for o in re.findall(r"<[^>]*>|\[[^]]*\]|[^,\s]+", rest)]
    base, *modes = name.split(".")
    statement = _MAKERS[base](modes, *operands)
    return f"if ({guard.replace('%', '')}) {{ {statement} }}" if guard else statement


def _operand(text: str, known: dict[str, str]) -> str:
    if text.startswith(("[", "<")):
        inner = text[1:-1]
        found = re.split(r"\+(?=-?\d)|,", inner)
        parts = [_operand(part.strip(), known) for part in found]
        return ("+" if text[0] == "[" else ",").join(parts)
    if text.startswith(("0d", "0f")):
        return f"{'double' if text[1] == 'd' else 'single'}_of(0x{text[2:]})"
    special = re.fullmatch(r"%(\w+)\.x", text)
    if special:
        return SPECIAL[special[1]]
    return known.get(text, text.replace("%", "").replace("$", ""))


# --- instructions --------------------------------------------------------------------------------


def _type(modes: list[str]) -> str:
    return TYPES[modes[-1]]


def _binary(sign: str) -> Callable[..., str]:
    def make(modes: list[str], d: str, a: str, b: str) -> str:
        kind = modes[-1]
        if kind[0] == "f":
            # Without a mode of rounding the assembler may fuse, which nothing here does.
            assert modes[0] == "rn", modes
        elif sign in "+-*":
            assert sign != "*" or modes[0] == "lo", modes
            kind = f"u{kind[1:]}"  # wraps
        type_ = TYPES[kind]
        if kind == "pred":
            return f"{d} = !!{a} {sign} !!{b};"
        return f"{d} = ({type_})({type_})({a}) {sign} ({type_})({b});"

    return make


def _multiply(modes: list[str], d: str, a: str, b: str) -> str:
    if modes[0] != "wide":
        return _binary("*")(modes, d, a, b)
    narrow = _type(modes)
    wide = narrow.replace("32", "64")
    return f"{d} = ({wide})({narrow})({a}) * ({wide})({narrow})({b});"


def _multiply_and_add(modes: list[str], d: str, a: str, b: str, c: str) -> str:
    assert modes == ["lo", "s32"], modes
    return f"{d} = (uint32_t)({a}) * (uint32_t)({b}) + (uint32_t)({c});"


def _negated(modes: list[str], d: str, a: str) -> str:
    return f"{d} = !{a};" if modes == ["pred"] else f"{d} = ~({a});"


def _shift(left: bool) -> Callable[..., str]:
    def make(modes: list[str], d: str, a: str, by: str) -> str:
        kind = modes[-1]
        function = "shl" if left else "sar" if kind[0] == "s" else "shr"
        return f"{d} = {function}(({TYPES[kind]})({a}), (uint32_t)({by}), {kind[1:]});"

    return make


def _extreme(sign: str) -> Callable[..., str]:
    def make(modes: list[str], d: str, a: str, b: str) -> str:
        assert modes[-1][0] in "su", modes
        one, other = (f"({_type(modes)})({x})" for x in (a, b))
        return f"{d} = {one} {sign} {other} ? {one} : {other};"

    return make


_COMPARED = {
    "eq": "a == b",
    "lt": "a < b",
    "le": "a <= b",
    "gt": "a > b",
    "ge": "a >= b",
    "nan": "a != a || b != b",
    "num": "a == a && b == b",
    "neu": "!(a == b)",
    "ne": "a < b || a > b",
}


def _compare(modes: list[str], d: str, a: str, b: str) -> str:
    how, kind = modes
    type_ = TYPES[kind]
    return f"{{ {type_} a = ({type_})({a}), b = ({type_})({b}); {d} = {_COMPARED[how]}; }}"


def _select(modes: list[str], d: str, a: str, b: str, p: str) -> str:
    return f"{d} = {p} ? ({_type(modes)})({a}) : ({_type(modes)})({b});"


def _move(modes: list[str], d: str, a: str) -> str:
    if "," in a:  # halves, the lower one first
        type_, half = _type(modes), int(modes[0][1:]) // 2
        low, high = a.split(",")
        return f"{d} = ({type_})(uint{half}_t){low} | ({type_})(uint{half}_t){high} << {half};"
    assert "," not in d, modes
    floats = [re.match(r"fd?\d+$", x) is not None for x in (d, a)]
    if modes[0][0] == "b" and any(floats):
        return f"memcpy(&{d}, &{a}, sizeof {d});"
    return f"{d} = !!({a});" if modes == ["pred"] else f"{d} = ({_type(modes)})({a});"


def _convert(modes: list[str], d: str, a: str) -> str:
    result, source = modes[-2:]
    assert modes[:-2] == (["rn"] if result[0] == "f" and modes[0] == "rn" else []), modes
    if source == "f16":
        return f"{{ _Float16 h; memcpy(&h, &{a}, 2); {d} = ({TYPES[result]})h; }}"
    if result == "f16":
        return f"{{ _Float16 h = (_Float16)({a}); memcpy(&{d}, &h, 2); }}"
    return f"{d} = ({TYPES[result]})({TYPES[source]})({a});"


def _memory(modes: list[str], address: str) -> tuple[str, list[str]]:
    space, *vector, kind = modes
    size = int(kind[1:]) // 8
    lanes = int(vector[0][1:]) if vector else 1
    where = "shared, ROOM" if space == "shared" else "0, 0"
    first = f"at({address}, {size * lanes}, {where})"
    return first, [f"(({TYPES[kind]} *)place)[{i}]" for i in range(lanes)]


def _load(modes: list[str], d: str, address: str) -> str:
    if modes[0] == "param":
        return f"{d} = {address};"
    place, items = _memory(modes, address)
    # A register that is wider holds the value with its sign, if its type has one.
    loads = " ".join(f"{r} = {item};" for r, item in zip(d.split(","), items, strict=True))
    return f"{{ char *place = {place}; {loads} }}"


def _store(modes: list[str], address: str, a: str) -> str:
    place, items = _memory(modes, address)
    stores = " ".join(f"{item} = {r};" for item, r in zip(items, a.split(","), strict=True))
    return f"{{ char *place = {place}; {stores} }}"


def _branch(modes: list[str], label: str) -> str:
    return f"goto {label};"


_MAKERS: dict[str, Callable[..., str]] = {
    "add": _binary("+"),
    "sub": _binary("-"),
    "mul": _multiply,
    "div": _binary("/"),
    "and": _binary("&"),
    "or": _binary("|"),
    "xor": _binary("^"),
    "not": _negated,
    "shl": _shift(left=True),
    "shr": _shift(left=False),
    "mad": _multiply_and_add,
    "min": _extreme("<"),
    "max": _extreme(">"),
    "setp": _compare,
    "selp": _select,
    "mov": _move,
    "cvt": _convert,
    "ld": _load,
    "st": _store,
    "bra": _branch,
    "bfi": lambda modes, d, a, b, start, length: f"{d} = insert({a}, {b}, {start}, {length});",
    "sqrt": lambda modes, d, a: f"{d} = sqrt({a});",
    "bar": lambda modes, number: "wait();",
    "ret": lambda modes: "return;",
}
