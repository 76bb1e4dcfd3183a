"""Plans: slots, where values come from, and what names mean in bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from opgraft.errors import ModelError
from opgraft.graph import Graph, Initializer, Node, Value
from opgraft.plan import ABSENT, BodyPlan, Origin, Plan, Step, build_plan


def values(names: str | Sequence[str | None]) -> tuple[Value | None, ...]:
    """`"a - b"`: values a and b with an absent one between."""
    each = names.split() if isinstance(names, str) else names
    return tuple(None if name in (None, "-") else Value(str(name), "float32") for name in each)


def node(name: str, inputs: str = "", outputs: str = "", **bodies: Graph) -> Node:
    read = {name: None for body in bodies.values() for name in free_names(body)}
    given, made = values(inputs), values(outputs)
    implicit = tuple(Value(each, "float32") for each in read)
    return Node(name, "Op", "test", 1, given, made, dict(bodies), implicit)


def free_names(graph: Graph) -> list[str]:
    read = [value.name for each in graph.nodes for value in (*each.inputs, *each.implicit_inputs) if value]
    read += [value.name for value in graph.outputs]
    return [name for name in dict.fromkeys(read) if name not in graph.own_names]


def initializer(name: str, elements: Any = 0.0, *, constant: bool = True) -> Initializer:
    array = np.asarray(elements, np.float32)
    return Initializer(Value(name, "float32", array.shape), lambda: array, constant)


def graph(inputs: str, nodes: Sequence[Node], outputs: str, *initializers: Initializer, name: str = "g") -> Graph:
    formals, results = values(inputs), values(outputs)
    return Graph(
        name,
        tuple(each for each in formals if each),
        tuple(each for each in results if each),
        tuple(nodes),
        {each.value.name: each for each in initializers},
        {"ai.onnx": 21},
    )


def names(plan: Plan, slots: Sequence[int]) -> list[str]:
    return ["-" if slot == ABSENT else plan.values[slot].name for slot in slots]


def origins(plan: Plan, slots: Sequence[int]) -> list[str]:
    return [plan.origin(slot).value for slot in slots]


def body_of(step: Step, name: str = "body") -> tuple[BodyPlan, Plan]:
    return step.bodies[name], step.bodies[name].plan


class TestSlots:
    @pytest.fixture
    def plan(self) -> Plan:
        nodes = [node("first", "x w", "a"), node("second", "a y w", "b")]
        return build_plan(graph("x y", nodes, "b a", initializer("w")))

    def test_inputs_then_constants_then_what_steps_make(self, plan: Plan) -> None:
        assert [value.name for value in plan.values] == ["x", "y", "w", "a", "b"]
        assert origins(plan, range(5)) == ["input", "input", "constant", "step", "step"]
        assert plan.first_constant == 2
        assert plan.captures == ()

    def test_steps_read_and_fill_slots(self, plan: Plan) -> None:
        first, second = plan.steps
        assert (names(plan, first.inputs), names(plan, first.outputs)) == (["x", "w"], ["a"])
        assert (names(plan, second.inputs), names(plan, second.outputs)) == (["a", "y", "w"], ["b"])

    def test_outputs_keep_the_callers_order(self, plan: Plan) -> None:
        assert names(plan, plan.outputs) == ["b", "a"]
        assert [value.name for value in plan.output_values] == ["b", "a"]

    def test_absent_values_have_the_absent_slot(self) -> None:
        plan = build_plan(graph("x", [node("n", "- x -", "- y")], "y"))
        (step,) = plan.steps
        assert names(plan, step.inputs) == ["-", "x", "-"]
        assert names(plan, step.outputs) == ["-", "y"]
        assert plan.origin(ABSENT) is Origin.ABSENT

    def test_a_value_read_many_times_has_one_slot(self) -> None:
        nodes = [node("a", "x x w", "a"), node("b", "w a a", "b"), node("c", "a b x", "c")]
        plan = build_plan(graph("x", nodes, "c", initializer("w")))
        assert sorted(value.name for value in plan.values) == ["a", "b", "c", "w", "x"]
        assert len(plan.constants) == 1

    def test_types_of_values_are_kept(self) -> None:
        made = Value("y", "int64", (3, "n"))
        given = Value("x", "bfloat16", (None,))
        plan = build_plan(Graph("g", (given,), (made,), (Node("n", "Op", "t", 1, (given,), (made,), {}),), {}, {}))
        assert plan.values == (given, made)

    def test_constants_that_nobody_reads_are_left_out(self) -> None:
        plan = build_plan(graph("x", [node("n", "x", "y")], "y", initializer("unused")))
        assert plan.constants == ()

    def test_nodes_that_nobody_needs_stay(self) -> None:
        plan = build_plan(graph("x", [node("dead", "x", "unused"), node("n", "x", "y")], "y"))
        assert [step.node.name for step in plan.steps] == ["dead", "n"]

    def test_unread_inputs_keep_their_slots(self) -> None:
        plan = build_plan(graph("x unused y", [node("n", "x y", "z")], "z"))
        assert [value.name for value in plan.inputs] == ["x", "unused", "y"]

    def test_nodes_are_put_in_order(self) -> None:
        nodes = [node("last", "b", "c"), node("first", "x", "a"), node("middle", "a", "b")]
        plan = build_plan(graph("x", nodes, "c"))
        assert [step.node.name for step in plan.steps] == ["first", "middle", "last"]

    def test_a_plan_is_immutable(self, plan: Plan) -> None:
        with pytest.raises(FrozenInstanceError):
            plan.name = "other"  # type: ignore[misc]
        assert isinstance(plan.steps, tuple)


class TestOutputs:
    @pytest.mark.parametrize(
        ("outputs", "expected"),
        [
            ("x", ["input"]),
            ("w", ["constant"]),
            ("y y", ["step", "step"]),
            ("x w y x w", ["input", "constant", "step", "input", "constant"]),
        ],
    )
    def test_may_be_anything_any_number_of_times(self, outputs: str, expected: list[str]) -> None:
        plan = build_plan(graph("x", [node("n", "x", "y")], outputs, initializer("w")))
        assert names(plan, plan.outputs) == outputs.split()
        assert origins(plan, plan.outputs) == expected

    def test_of_a_graph_without_nodes(self) -> None:
        plan = build_plan(graph("x", [], "x w", initializer("w")))
        assert plan.steps == ()
        assert origins(plan, plan.outputs) == ["input", "constant"]


class TestCallersNames:
    def test_give_the_order_of_inputs_and_outputs(self) -> None:
        nodes = [node("n", "x y", "a"), node("m", "a", "b")]
        plan = build_plan(graph("x y", nodes, "b"), inputs=["y", "x"], outputs=["a", "b", "y"])
        assert [value.name for value in plan.inputs] == ["y", "x"]
        assert names(plan, plan.outputs) == ["a", "b", "y"]

    def test_an_input_may_be_what_only_a_node_reads(self) -> None:
        plan = build_plan(graph("", [node("n", "from_outside", "y")], "y"), inputs=["from_outside"])
        assert plan.inputs == (Value("from_outside", "float32"),)

    def test_constant_initializers_among_the_graphs_inputs_are_no_inputs(self) -> None:
        given = graph("x w v", [node("n", "x w v", "y")], "y", initializer("w"), initializer("v", constant=False))
        plan = build_plan(given)
        assert [value.name for value in plan.inputs] == ["x", "v"]
        assert [each.value.name for each in plan.constants] == ["w"]

    def test_an_input_hides_the_initializer_of_its_name(self) -> None:
        plan = build_plan(graph("w", [node("n", "w", "y")], "y", initializer("w")), inputs=["w"])
        assert origins(plan, plan.steps[0].inputs) == ["input"]
        assert plan.constants == ()


class TestBodies:
    def test_captures_are_filled_from_the_slots_around(self) -> None:
        body = graph("i", [node("inner", "i x a", "r")], "r", name="body")
        plan = build_plan(graph("x", [node("n", "x", "a"), node("loop", "x", "y", body=body)], "y"))
        bound, inner = body_of(plan.steps[1])
        assert [value.name for value in inner.inputs] == ["i"]
        assert [value.name for value in inner.captures] == ["x", "a"]
        assert names(plan, bound.captured) == ["x", "a"]
        assert names(inner, inner.steps[0].inputs) == ["i", "x", "a"]
        assert origins(inner, inner.steps[0].inputs) == ["input", "capture", "capture"]

    def test_captures_go_through_two_levels(self) -> None:
        deep = graph("j", [node("deepest", "j x a m", "d")], "d", name="deep")
        body = graph("i", [node("middle", "i", "m"), node("nested", "", "e", body=deep)], "e", name="body")
        plan = build_plan(graph("x", [node("n", "x", "a"), node("loop", "", "y", body=body)], "y"))
        bound, middle = body_of(plan.steps[1])
        deeper_bound, deepest = body_of(middle.steps[1])
        assert names(plan, bound.captured) == ["x", "a"]
        assert names(middle, deeper_bound.captured) == ["x", "a", "m"]
        assert origins(middle, deeper_bound.captured) == ["capture", "capture", "step"]
        assert origins(deepest, deepest.steps[0].inputs) == ["input", "capture", "capture", "capture"]

    def test_a_value_captured_by_both_branches_is_one_slot_around_them(self) -> None:
        branches = {name: graph("", [node("inner", "x", "r")], "r", name=name) for name in ("then", "else")}
        plan = build_plan(graph("x", [node("if", "", "y", **branches)], "y"))
        captured = [plan.steps[0].bodies[name].captured for name in branches]
        assert captured == [(0,), (0,)]

    def test_names_may_repeat_in_sibling_bodies(self) -> None:
        then = graph("", [node("t", "x", "r"), node("t2", "r w", "s")], "s", initializer("w", 1), name="then")
        other = graph("", [node("e", "x", "s"), node("e2", "s w", "r")], "r", initializer("w", 2), name="else")
        plan = build_plan(graph("x", [node("if", "", "y", then=then, other=other)], "y"))
        for name, elements, order in (("then", 1, ["r", "s"]), ("other", 2, ["s", "r"])):
            _, body = body_of(plan.steps[0], name)
            assert [constant.read().item() for constant in body.constants] == [elements]
            assert names(body, [step.outputs[0] for step in body.steps]) == order

    @pytest.mark.parametrize("output", ["x", "a", "w", "own", "i"])
    def test_an_output_may_be_anything_in_sight(self, output: str) -> None:
        body = graph("i", [], output, initializer("own"), name="body")
        outer = graph("x", [node("n", "x", "a"), node("loop", "", "y", body=body)], "y", initializer("w"))
        _, inner = body_of(build_plan(outer).steps[1])
        expected = {"x": "capture", "a": "capture", "w": "constant", "own": "constant", "i": "input"}
        assert origins(inner, inner.outputs) == [expected[output]]

    def test_all_steps_go_all_the_way_down(self) -> None:
        deep = graph("", [node("deepest", "x", "d")], "d")
        body = graph("", [node("middle", "x", "m"), node("nested", "", "e", body=deep)], "e")
        plan = build_plan(graph("x", [node("loop", "", "y", body=body), node("after", "y", "z")], "z"))
        assert [step.node.name for step in plan.all_steps()] == ["loop", "middle", "nested", "deepest", "after"]

    def test_a_body_may_read_what_a_later_node_makes_in_a_graph_out_of_order(self) -> None:
        body = graph("", [node("inner", "a", "r")], "r")
        plan = build_plan(graph("x", [node("if", "", "y", body=body), node("n", "x", "a")], "y"))
        assert [step.node.name for step in plan.steps] == ["n", "if"]


class TestWhatANameMeans:
    """In a body: what the body takes or makes, what it carries, what the plan takes in, what runs around it, and last
    what the graphs around it carry."""

    def read_in_body(self, body: Graph, outer_nodes: Sequence[Node], *outer: Initializer, inputs: str = "x") -> Any:
        """Where the body's first node has its first input from, and the initializer if it is one."""
        plan = build_plan(graph(inputs, [*outer_nodes, node("loop", "", "y", body=body)], "y", *outer))
        _, inner = body_of(plan.steps[-1])
        (slot,) = inner.steps[-1].inputs
        origin = inner.origin(slot)
        constant = inner.constants[slot - inner.first_constant].read().item() if origin is Origin.CONSTANT else None
        return origin.value, constant

    def test_made_in_the_body_before_anything(self) -> None:
        body = graph("", [node("make", "", "v"), node("read", "v", "r")], "r")
        assert self.read_in_body(body, [node("n", "x", "v")], initializer("v", 3)) == ("step", None)

    def test_taken_in_by_the_body_before_what_is_around(self) -> None:
        body = graph("v", [node("read", "v", "r")], "r")
        assert self.read_in_body(body, [node("n", "x", "v")], initializer("v", 3)) == ("input", None)

    def test_carried_by_the_body_before_an_input_of_the_plan(self) -> None:
        body = graph("", [node("read", "x", "r")], "r", initializer("x", 5))
        assert self.read_in_body(body, []) == ("constant", 5)

    def test_carried_by_the_body_before_a_runtime_value_around_it(self) -> None:
        body = graph("", [node("read", "v", "r")], "r", initializer("v", 5))
        assert self.read_in_body(body, [node("n", "x", "v")]) == ("constant", 5)

    def test_carried_by_the_body_before_what_the_graph_carries(self) -> None:
        body = graph("", [node("read", "v", "r")], "r", initializer("v", 5))
        assert self.read_in_body(body, [], initializer("v", 3)) == ("constant", 5)

    def test_an_input_of_the_plan_before_what_the_graph_carries(self) -> None:
        body = graph("", [node("read", "v", "r")], "r")
        given = initializer("v", 3, constant=False)
        assert self.read_in_body(body, [], given, inputs="x v") == ("capture", None)

    def test_a_runtime_value_around_it_before_what_the_graph_carries(self) -> None:
        body = graph("", [node("read", "v", "r")], "r")
        assert self.read_in_body(body, [node("n", "x", "v")], initializer("v", 3)) == ("capture", None)

    def test_what_the_graph_carries_comes_along_as_a_constant(self) -> None:
        carried = initializer("v", 3)
        body = graph("", [node("read", "v", "r")], "r")
        plan = build_plan(graph("x", [node("n", "v", "a"), node("loop", "", "y", body=body)], "y", carried))
        bound, inner = body_of(plan.steps[1])
        assert inner.constants == plan.constants == (carried,)
        assert bound.captured == ()

    def test_the_nearest_of_enclosing_graphs_is_meant(self) -> None:
        deep = graph("", [node("read", "v", "d")], "d", name="deep")
        body = graph("", [node("nested", "", "e", body=deep)], "e", initializer("v", 2), name="body")
        plan = build_plan(graph("x", [node("n", "x", "v"), node("loop", "", "y", body=body)], "y"))
        bound, middle = body_of(plan.steps[1])
        _, deepest = body_of(middle.steps[0])
        assert [constant.read().item() for constant in deepest.constants] == [2]
        assert bound.captured == ()

    def test_a_body_that_hides_a_name_leaves_it_alone_around_it(self) -> None:
        body = graph("", [node("read", "v", "r")], "r", initializer("v", 5))
        nodes = [node("loop", "", "y", body=body), node("after", "v", "z")]
        plan = build_plan(graph("x", nodes, "z", initializer("v", 3)))
        (slot,) = plan.steps[1].inputs
        assert plan.constants[slot - plan.first_constant].read().item() == 3


class TestErrors:
    def test_a_name_that_nothing_defines(self) -> None:
        with pytest.raises(ModelError, match="graph 'g' reads 'nothing', which nothing defines"):
            build_plan(graph("x", [node("n", "x nothing", "y")], "y"))

    def test_such_a_name_in_a_body(self) -> None:
        body = graph("", [node("n", "nothing", "r")], "r", name="body")
        with pytest.raises(ModelError, match="graph 'body' reads 'nothing'"):
            build_plan(graph("x", [node("loop", "", "y", body=body)], "y"))

    def test_what_a_body_makes_is_not_to_be_seen_from_outside(self) -> None:
        body = graph("", [node("n", "x", "r")], "r", name="body")
        with pytest.raises(ModelError, match="reads 'r'"):
            build_plan(graph("x", [node("loop", "", "y", body=body), node("after", "r", "z")], "z"))

    def test_an_output_that_nothing_defines(self) -> None:
        with pytest.raises(ModelError, match="reads 'nothing'"):
            build_plan(graph("x", [], "nothing"))

    def test_a_cycle(self) -> None:
        with pytest.raises(ModelError, match="cycle, at or before node 'n'"):
            build_plan(graph("x", [node("n", "x b", "a"), node("m", "a", "b")], "b"))

    def test_a_cycle_through_a_body(self) -> None:
        body = graph("", [node("inner", "b", "r")], "r")
        nodes = [node("loop", "", "a", body=body), node("m", "a", "b")]
        with pytest.raises(ModelError, match="cycle"):
            build_plan(graph("x", nodes, "b"))
