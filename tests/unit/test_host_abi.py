from __future__ import annotations

import pytest

from opgraft.host import abi
from opgraft.host._ep import ffi

SLOTS_OF_1_24 = {"ORT_API": 415, "EP_API": 50}
"""How many slots the oldest supported ONNX Runtime has."""


@pytest.mark.parametrize("table", SLOTS_OF_1_24)
def test_every_slot_is_in_the_oldest_supported_version(table: str) -> None:
    functions = getattr(abi, table)
    slots = [function.slot for function in functions]
    assert slots == sorted(set(slots))
    always = [function.slot for function in functions if function.name not in abi.ADDED_IN]
    assert always[-1] < SLOTS_OF_1_24[table]
    assert len({function.name for function in functions}) == len(functions)


@pytest.mark.parametrize("name", abi.STRUCTURES)
def test_structures_are_laid_out_as_the_table_says(name: str) -> None:
    members = abi.STRUCTURES[name]
    assert [field for field, _ in ffi.typeof(name).fields] == [member.name for member in members]
    pointer = ffi.sizeof("void *")
    for position, member in enumerate(members):
        offset = ffi.offsetof(name, member.name)
        assert offset == (4 if member.data_type == "bool" else position * pointer)


def test_signatures_are_read_whole() -> None:
    function = next(each for each in abi.ORT_API if each.name == "KernelContext_GetOutput")
    assert function.returns == "OrtStatus *"
    assert function.arguments == "context, index, sizes, rank, value"
    assert next(each for each in abi.ORT_API if each.name == "GetEpApi").declared_parameters == "void"
