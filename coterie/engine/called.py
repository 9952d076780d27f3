"""The module itself over rows: by PyTorch's `vmap`, or one row after another, which any module can do."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.engine.kernels.dropout import KeyedDropout
from coterie.engine.kernels.row_layers import LONELY
from coterie.errors import BadInput


class Called:
    """A module that is called with each row's tensors in place of its own."""

    def __init__(self, module: nn.Module, buffers: Sequence[str], draws: bool, vmapped: bool) -> None:
        self.module, self.buffers, self.draws, self.vmapped = module, buffers, draws, vmapped

    def __call__(
        self, tensors: Mapping[str, Tensor], x: Tensor, keys: Tensor, training: bool, real: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs (k, b, ...) of rows with these tensors (k, ...) on x (k, b, ...), and the buffers after training.

        All samples are taken for real: nothing here could tell the module which of them fill a batch.
        """
        assert real is None
        self.module.train(training)
        # Training moves the buffers in place, so it gets a copy of them; a contiguous one of each, because vmap folds
        # the rows into the channels, and of anything else it would move a copy of its own.
        own = {name: tensors[name].clone(memory_format=torch.contiguous_format) for name in self.buffers}
        tensors = {**tensors, **own}

        def call(tensors: dict[str, Tensor], sample: Tensor, key: Tensor) -> tuple[Any, dict[str, Tensor]]:
            mine = dict(tensors)  # in which `functional_call` leaves what the module assigned to its buffers
            with KeyedDropout(key, active=training and self.draws):
                out = functional_call(self.module, mine, (sample,))
            return out, {name: mine[name].detach() for name in self.buffers} if training else {}

        try:
            if self.vmapped and len(x) > 1:
                return vmap(call, randomness="different")(tensors, x, keys)
            each = [{name: t[row] for name, t in tensors.items()} for row in range(len(x))]
            # Copies of the samples: to autograd, views of one batch would all change when one of them does.
            calls = [call(one, own.clone(), key) for one, own, key in zip(each, x, keys, strict=True)]
            outs, moved = zip(*calls, strict=True)
            return torch.stack(outs), {name: torch.stack([one[name] for one in moved]) for name in moved[0]}
        except ValueError as error:
            if x.shape[1] == 1 and "more than 1" in str(error):
                raise BadInput(LONELY) from None
            raise
