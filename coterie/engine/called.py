"""The module itself over rows: by PyTorch's `vmap`, or one row after another, which any module can do."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.engine.kernels.dropout import KeyedDropout
from coterie.engine.kernels.row_layers import LONELY
from coterie.errors import BadInput


class Called:
    """A module that is called with each row's tensors in place of its own."""

    def __init__(
        self, module: nn.Module, buffers: Sequence[str], draws: bool, vmapped: bool, head: str | None = None
    ) -> None:
        self.module, self.buffers, self.draws, self.vmapped = module, buffers, draws, vmapped
        self.head = None if head is None else module.get_submodule(head)

    def __call__(
        self, tensors: Mapping[str, Tensor], x: Tensor, keys: Tensor, training: bool, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs (k, b, ...) of rows with these tensors (k, ...) on x (k, b, ...), and the buffers after training.

        All samples are taken for real: nothing here could tell the module which of them fill a batch.
        """
        assert mask is None
        out, moved, _ = self._over_rows(tensors, x, keys, training, None)
        return out, moved

    def with_features(
        self, tensors: Mapping[str, Tensor], x: Tensor, keys: Tensor, training: bool, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """The same, and what the head is given (k, b, ...)."""
        assert mask is None
        out, moved, (features,) = self._over_rows(tensors, x, keys, training, self.head)
        return out, moved, features

    def _over_rows(
        self, tensors: Mapping[str, Tensor], x: Tensor, keys: Tensor, training: bool, head: nn.Module | None
    ) -> tuple[Tensor, dict[str, Tensor], tuple[Tensor, ...]]:
        self.module.train(training)

        def own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            # Training moves the buffers in place, so it gets a copy of them; a contiguous one of each, because vmap
            # folds the rows into the channels, and of anything else it would move a copy of its own.
            copies = {name: tensors[name].clone(memory_format=torch.contiguous_format) for name in self.buffers}
            return {**tensors, **copies}

        def call(tensors: dict[str, Tensor], sample: Tensor, key: Tensor) -> tuple[Any, dict[str, Tensor], Any]:
            mine = dict(tensors)  # in which `functional_call` leaves what the module assigned to its buffers
            with KeyedDropout(key, active=training and self.draws), _noted(head) as features:
                out = functional_call(self.module, mine, (sample,))
            moved = {name: mine[name].detach() for name in self.buffers} if training else {}
            return out, moved, tuple(features)

        try:
            if self.vmapped and len(x) > 1:
                return vmap(call, randomness="different")(own(tensors), x, keys)
            # Copies of each row's: to autograd, views of one tensor would all change when one of them does.
            each = [own({name: t[row] for name, t in tensors.items()}) for row in range(len(x))]
            calls = [call(one, samples.clone(), key) for one, samples, key in zip(each, x, keys, strict=True)]
            outs, moved, features = zip(*calls, strict=True)
            after = {name: torch.stack([one[name] for one in moved]) for name in moved[0]}
            return torch.stack(outs), after, tuple(map(torch.stack, zip(*features, strict=True)))
        except ValueError as error:
            if x.shape[1] == 1 and "more than 1" in str(error):
                raise BadInput(LONELY) from None
            raise


class BeforeHead(nn.Module):
    """A module up to its head: gives what that is given."""

    def __init__(self, module: nn.Module, head: str) -> None:
        super().__init__()
        self.module, self.head = module, head
        module.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Samples (n, ...) to features (n, ...)."""
        with _noted(self.module.get_submodule(self.head)) as features:
            self.module(x)
        return features[0]


class HeadAlone(nn.Module):
    """The head of a module, under its own name."""

    def __init__(self, module: nn.Module, head: str) -> None:
        super().__init__()
        *outer, last = head.split(".")
        inside: nn.Module = self
        for name in outer:
            inside.add_module(name, nn.Module())
            inside = inside.get_submodule(name)
        inside.add_module(last, module.get_submodule(head))
        self.name = head

    def forward(self, features: Tensor) -> Tensor:
        """Features (n, ...) to outputs (n, ...)."""
        out: Tensor = self.get_submodule(self.name)(features)
        return out


@contextmanager
def _noted(layer: nn.Module | None) -> Iterator[list[Tensor]]:
    """What a layer is given while it is called, in a list; a copy, which the layer cannot change in place."""
    seen: list[Tensor] = []
    if layer is None:
        yield seen
        return
    with layer.register_forward_pre_hook(lambda layer, given: seen.append(given[0].clone())):
        yield seen
