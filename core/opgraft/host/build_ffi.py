"""Builds the extension module `opgraft.host._ep`: C made from the tables of `abi.py`, and `support.c`.

setuptools runs this file by its path, before anything is installed; so does it find its neighbours.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cffi import FFI

HERE = Path(__file__).resolve().parent
ABI: Mapping[str, Any] = runpy.run_path(str(HERE / "abi.py"))

# Structures of support.c and its functions that Python calls.
SUPPORT = """
#define MAX_RANK 64

/* A tensor in the CPU's memory, or with addresses for whatever is in a device's. */
typedef struct {
    void *data;
    uintptr_t address;
    const int64_t *sizes;
    size_t rank;
    int32_t element_type;
    bool on_device;
} TensorView;

typedef struct {
    const char *name;
    const char *symbols[MAX_RANK];
    int64_t sizes[MAX_RANK];
    size_t rank;
    int32_t kind;
    int32_t element_type;
    bool has_shape;
    bool constant;
    bool outer;
} ValueView;

typedef struct {
    const char *name;
    const char *op_type;
    const char *domain;
    const char *ep_name;
    int since_version;
    size_t inputs;
    size_t outputs;
    size_t implicit_inputs;
    size_t attributes;
    size_t bodies;
} NodeView;

typedef struct { const char *name; int32_t type; size_t size; int64_t integer; float number; } AttributeView;

/* What an OrtCustomOp answers about itself. Its outputs are followed by a variadic one; element type 0 is any type. */
typedef struct {
    char *name;
    int since;
    size_t inputs;
    int32_t *input_types;
    int32_t *characteristics;
    bool homogeneous;
    size_t outputs;
    int32_t *output_types;
} OpFacts;
"""

SUPPORT_FUNCTIONS = """
uint32_t api_version(void);
const char *ort_version(const OrtApiBase *base);
bool attach(const OrtApiBase *base, uint32_t api_version);
bool shut_down(int milliseconds);
void interrupt_again(void);
void forget_other_threads(void);
void check_allocations(void *allocator, void *raising);
OrtStatus *read_tensor(const OrtValue *value, TensorView *view);
OrtStatus *read_inputs(const OrtKernelContext *context, const size_t *indices, TensorView *views, size_t count);
OrtStatus *open_output(OrtKernelContext *context, size_t index, const int64_t *sizes, size_t rank, TensorView *view);
uintptr_t reserve_addresses(size_t size);
OrtStatus *read_type(const OrtTypeInfo *type, ValueView *view);
OrtStatus *read_value(const OrtValueInfo *info, ValueView *view);
OrtStatus *read_inferred_input(const OrtShapeInferContext *context, size_t index, ValueView *view);
OrtStatus *set_inferred_output(OrtShapeInferContext *context, size_t index, ValueView *view);
OrtStatus *read_node(const OrtNode *node, NodeView *view);
OrtStatus *read_node_values(const OrtNode *node, const NodeView *view, const OrtValueInfo **infos);
OrtStatus *read_attribute(const OrtOpAttr *attribute, AttributeView *view);
"""


def declarations() -> str:
    """Type declarations shared by the C source and by cffi."""
    lines = [f"typedef struct {name} {name};" for name in (*ABI["OPAQUE_TYPES"], "OrtApiBase", *ABI["STRUCTURES"])]
    return "\n".join([*lines, SUPPORT])


def structure(name: str, members: Any) -> str:
    fields = []
    for member in members:
        if member.function is not None:
            fields.append(f"{member.function.returns} (*{member.name})({member.function.declared_parameters});")
        else:
            fields.append(f"{member.data_type or 'void *'} {member.name};")
    return f"struct {name} {{ {' '.join(fields)} }};"


def prototype(function: Any, name: str) -> str:
    return f"{function.returns} {name}({function.declared_parameters})"


def wrapper(function: Any, prefix: str) -> str:
    """A C function that calls through a slot of the table `<prefix>_table`."""
    pointer = f"({function.returns} (*)({function.declared_parameters}))"
    call = f"({pointer}{prefix}_table[{function.slot}])({function.arguments});"
    keyword = "" if function.returns == "void" else "return "
    return f"static {prototype(function, f'{prefix}_{function.name}')} {{ {keyword}{call} }}"


def trampoline(owner: str, member: Any) -> str:
    """The C function behind one member of a structure that opgraft fills."""
    function = member.function
    name = f"{owner}_{member.name}"
    head = f"static {prototype(function, name)}"
    if member.body is not None:
        return f"{head} {member.body}"
    forwarded = f"py_{name}"
    declared = f"static {prototype(function, forwarded)};"
    call = f"{forwarded}({function.arguments})"
    if function.returns == "void":
        freeing = ABI["FREES"].get(name, "")
        body = f"if (!enter()) return; UNTIL_DONE({call}); {freeing} leave();"
    else:
        refused, result = ("refusal()", "outcome(result)") if function.returns == "OrtStatus *" else ("0", "result")
        body = f"if (!enter()) return {refused}; {function.returns} result = {call}; leave(); return {result};"
    return f"{declared}\n{head} {{ {body} }}"


def maker(owner: str, members: Any) -> str:
    """`new_X`: a zeroed structure with its version and trampolines set, on the C heap."""
    fills = " ".join(f"made->{m.name} = {owner}_{m.name};" for m in members if m.function is not None)
    return (
        f"static {owner} *new_{owner}(void) {{ {owner} *made = calloc(1, sizeof *made); "
        f"if (made) {{ made->{members[0].name} = api_version_in_use; {fills} }} return made; }}"
    )


def source() -> str:
    head, _, tail = (HERE / "support.c").read_text().partition("/* The generated code stands here. */")
    structures = ABI["STRUCTURES"].items()
    generated = [
        *(wrapper(function, "ort") for function in ABI["ORT_API"]),
        *(wrapper(function, "ep") for function in ABI["EP_API"]),
        "static OrtStatus *outcome(OrtStatus *status);",
        "static OrtStatus *refusal(void);",
        *(trampoline(name, m) for name, members in structures for m in members if m.function is not None),
        *(maker(name, members) for name, members in structures),
    ]
    layouts = [structure(name, members) for name, members in structures]
    return "\n".join(["#include <stdbool.h>", "#include <stdint.h>", declarations(), *layouts, head, *generated, tail])


def interface() -> str:
    """What Python sees."""
    structures = ABI["STRUCTURES"].items()
    lines = [
        declarations(),
        *(structure(name, members) for name, members in structures),
        *(prototype(function, f"ort_{function.name}") + ";" for function in ABI["ORT_API"]),
        *(prototype(function, f"ep_{function.name}") + ";" for function in ABI["EP_API"]),
        *(f"{name} *new_{name}(void);" for name, _ in structures),
        "void free(void *memory);",
        "extern char ep_version[64];",
        "extern OrtStatus *const done;",
        SUPPORT_FUNCTIONS,
    ]
    callbacks = [
        prototype(m.function, f"py_{name}_{m.name}") + ";"
        for name, members in structures
        for m in members
        if m.function is not None and m.body is None
    ]
    return "\n".join([*lines, 'extern "Python" {', *callbacks, "}"])


ffibuilder = FFI()
ffibuilder.cdef(interface())
ffibuilder.set_source(
    "opgraft.host._ep",
    source(),
    depends=[str(HERE / "support.c"), str(HERE / "abi.py")],
    extra_compile_args=[] if os.name == "nt" else ["-fexceptions"],  # which may pass through a function of support.c
)
