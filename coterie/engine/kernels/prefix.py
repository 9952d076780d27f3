"""A rewritten module in two: what is frozen before anything that trains, and the rest."""

import operator
from dataclasses import dataclass

import torch
from torch import fx


@dataclass(frozen=True)
class Rewritten:
    """A module as a program of all rows' tensors, samples, the number of rows, keys of dropout and a mask."""

    module: fx.GraphModule
    features: fx.Node | None  # what the head is given
    takes_padding: bool  # whether it has to know which samples are real
    fixed: frozenset[fx.Node]  # what does not depend on a row but by its samples

    def split(self) -> "tuple[fx.GraphModule, Rewritten] | None":
        """The samples (n, ...) to what is frozen for them (n, ...), and the program that goes on from there.

        None where that is not one tensor, or costs nothing.
        """
        given = next(node for node in self.module.graph.nodes if node.op == "placeholder" and node.target == "x")
        made = _made_of({given}) & self.fixed
        ends = [node for node in self.module.graph.nodes if node in made and not made.issuperset(node.users)]
        if len(ends) != 1 or not any(self._has_weights(node) for node in _making(ends[0])):
            return None
        if any(user.target is operator.iadd for user in ends[0].users):  # which would change what is kept
            return None
        rest, copies = self._rest(given, made, ends[0])
        if self.features is not None and self.features not in copies:
            return None
        features = None if self.features is None else copies[self.features]
        return self._first(given, ends[0]), Rewritten(rest, features, self.takes_padding, frozenset())

    def _has_weights(self, node: fx.Node) -> bool:
        layer = node.op == "call_module" and any(True for _ in self.module.get_submodule(str(node.target)).parameters())
        return layer or node.op == "get_attr"

    def _first(self, given: fx.Node, end: fx.Node) -> fx.GraphModule:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        making = _making(end)
        for node in self.module.graph.nodes:
            if node is given:
                copies[node] = graph.placeholder("x")
            elif given in node.all_input_nodes:  # all rows' samples as one batch, which these are
                copies[node] = copies[given]
            elif node in making:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[end])
        return fx.GraphModule(self.module, graph)

    def _rest(self, given: fx.Node, made: set[fx.Node], end: fx.Node) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self.module.graph.nodes:
            if node is end:
                copies[node] = graph.call_function(torch.flatten, (copies[given], 0, 1))
            elif node is given or node not in made:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        return fx.GraphModule(self.module, graph), copies


def _made_of(first: set[fx.Node]) -> set[fx.Node]:
    """Nodes and all that is computed from them."""
    found, todo = set(first), list(first)
    while todo:
        new = todo.pop().users.keys() - found
        found |= new
        todo += new
    return found


def _making(last: fx.Node) -> set[fx.Node]:
    """A node and all that it is computed from."""
    found, todo = {last}, [last]
    while todo:
        new = set(todo.pop().all_input_nodes) - found
        found |= new
        todo += new
    return found
